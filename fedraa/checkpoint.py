"""Checkpoints: a run's whole state in one file, written whole or not at all, checked when read, without pickle."""

from typing import Any

State = dict[str, Any]
"""What a stateful object is made of: a nested dict (string keys) and lists of JSON values and numpy arrays.

`state()` gives it, `restore(state)` takes it back. What comes back from a file is equal to what went in but for
tuples, which come back as lists, and NumPy scalars, which come back as Python's. An array that is in a state
several times is written once and comes back as one array.
"""
