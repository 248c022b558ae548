"""The values with which each method does best on validation data, found with as many trials for each."""
