"""Measurements of the system itself."""
