"""Robust aggregators, which limit the influence of clients that send wrong deltas. Each has its own module."""
