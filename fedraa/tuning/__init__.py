"""Tuning: a search for the best values of each method on validation data. All methods have equally many trials."""
