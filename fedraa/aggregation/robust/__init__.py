"""Robust aggregators, one per module. They limit the influence of clients that send wrong deltas."""
