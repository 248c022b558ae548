"""Functions that start or join a Ray cluster, place actors on its nodes, and list, stop or copy its runs."""
