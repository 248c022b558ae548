"""The values of a method: those of the user, of its paper, or tuned."""
