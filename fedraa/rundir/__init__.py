"""The run directory: log, checkpoints, lock, and what is read from them."""
