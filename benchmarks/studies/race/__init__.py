"""The race: the time in which each tuned method reaches an accuracy. Centralised SGD is a limit for all methods."""
