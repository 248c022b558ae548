"""Studies of methods, and measurements of the system itself."""
