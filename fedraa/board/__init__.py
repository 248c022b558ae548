"""The board: a live page of all runs in a folder, served on loopback."""
