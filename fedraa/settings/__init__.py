"""The choice of a method's values: the user's, the paper's, or tuned values."""
