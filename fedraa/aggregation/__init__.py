"""Aggregators, which combine the deltas of a round into one."""
