"""The execution of one run: it is built from an experiment, and a loop steps it with a clock and an executor."""
