"""Tuning: a search for the best values of each method on validation data, with equal numbers of trials."""
