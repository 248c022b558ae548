"""Ray clusters: start or join one, place actors, operate runs on it."""
