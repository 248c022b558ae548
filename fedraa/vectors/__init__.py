"""Arithmetic on flat parameter vectors and on sets of their coordinates. The modules need NumPy, but not torch."""
