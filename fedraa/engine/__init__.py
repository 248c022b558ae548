"""The execution of one run. A run is built from an experiment; then a loop executes it, step by step."""
