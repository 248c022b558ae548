"""The actor of the parameter server, and the actors of its shards."""
