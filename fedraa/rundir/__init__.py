"""Read and write a run directory: the log, the checkpoints, the lock and the other files of a run."""
