"""Aggregators. An aggregator combines the deltas of a round's clients into one delta."""
