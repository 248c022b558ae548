"""The executor on Ray, which gives tasks to worker actors."""
