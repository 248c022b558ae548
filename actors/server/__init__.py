"""The parameter server as an actor, and its shards."""
