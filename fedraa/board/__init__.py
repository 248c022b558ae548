"""The board: a live web page about all runs in a folder. Only this machine can open the page."""
