"""The values with which a method runs: values of the user, of the method's paper, or tuned values."""
