"""Checks of a finished run: every decision, weight and time in its log, and its files."""
