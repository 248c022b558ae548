"""The replay of a finished run: a check of every decision, weight and time in its log, and of its files."""
