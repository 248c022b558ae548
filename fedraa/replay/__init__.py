"""The replay of a finished run. It checks every decision, weight and time in the log, then the run's other files."""
