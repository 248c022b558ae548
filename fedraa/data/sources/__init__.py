"""Sources of samples, from which each client reads its samples."""
