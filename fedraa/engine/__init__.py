"""One run: built from an experiment, stepped by a loop over a clock and an executor."""
