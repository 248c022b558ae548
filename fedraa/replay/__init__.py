"""The replay of a finished run, which checks every decision, weight and time in the log, and the other files."""
