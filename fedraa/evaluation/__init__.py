"""Evaluation of a model on the test set, and on each client's test samples."""
