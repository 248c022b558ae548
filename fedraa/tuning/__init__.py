"""Tuning: search for the best values of each method on validation data, with an equal number of trials for each."""
