"""Evaluation of a model: loss and metrics on the test set, and for each client."""
