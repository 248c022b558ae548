"""Terms of local training, and how a client's update is compressed."""
