"""The actor of a worker, which trains tasks and evaluates models."""
