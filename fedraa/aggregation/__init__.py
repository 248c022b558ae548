"""Aggregators, which combine the deltas of a round's clients into one delta."""
