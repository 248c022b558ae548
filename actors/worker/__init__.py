"""The worker as an actor."""
