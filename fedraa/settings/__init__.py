"""The values of a method: of the user, of its paper, or tuned."""
