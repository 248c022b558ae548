"""The study `race`: tuned methods, compared by the time at which each reaches an accuracy.

Centralised SGD is the upper bound.
"""
