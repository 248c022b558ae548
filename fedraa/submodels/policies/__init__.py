"""Which part of the model a client trains."""
