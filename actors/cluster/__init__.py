"""Functions that start or join a Ray cluster, place actors on it, and list, stop and fetch its runs."""
