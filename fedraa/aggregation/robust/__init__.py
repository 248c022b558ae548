"""Robust aggregators, a module each. They limit the influence of clients that send wrong deltas."""
