"""Aggregators: how a round's deltas become one."""
