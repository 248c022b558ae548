"""Evaluation of a model: the loss and the metrics on the whole test set, and on the test samples of each client."""
