"""The run directory: writers and readers of the log, the checkpoints, the lock and the other files of a run."""
