"""The race: a comparison of tuned methods by the time in which each reaches an accuracy.

Centralised SGD also takes part, as an upper bound for all methods.
"""
