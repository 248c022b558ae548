"""Differential privacy of clients: clipping, noise, and the computation of epsilon."""
