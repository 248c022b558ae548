"""Arithmetic on flat parameter vectors and on sets of their coordinates. It needs NumPy, and no torch."""
