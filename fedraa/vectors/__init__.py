"""Arithmetic on flat parameter vectors with NumPy, without torch."""
