"""The figures of a model: loss and metrics, on the test set and per client."""
