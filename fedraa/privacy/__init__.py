"""Differential privacy of clients: clipping, noise, and the accounting of epsilon."""
