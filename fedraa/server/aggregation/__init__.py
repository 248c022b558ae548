"""What becomes of a round's deltas."""
