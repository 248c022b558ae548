"""Measurements of fedraa as a system: speed, memory, and behaviour after failures."""
