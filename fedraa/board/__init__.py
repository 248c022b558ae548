"""The board: a live web page of all runs in a folder, which only this machine can open."""
