"""The run directory: log, checkpoints, lock, and their readers."""
