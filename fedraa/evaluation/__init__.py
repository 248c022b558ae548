"""The metrics of a model: loss and others, on the test set and per client."""
