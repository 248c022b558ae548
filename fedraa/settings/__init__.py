"""The choice of the values with which a method runs: the user's, the paper's, or tuned values."""
