"""Read and write a run directory: the log, the checkpoints, the lock and other files."""
