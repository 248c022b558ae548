"""The actors that hold the model: the parameter server and its shards."""
