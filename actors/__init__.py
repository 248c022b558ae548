"""Ray actors: thin shells that host the plain classes of fedraa."""
