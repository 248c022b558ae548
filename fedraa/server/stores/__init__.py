"""Stores hold the parameters of an asynchronous server, in its process or on several server shards."""
