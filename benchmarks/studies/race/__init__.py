"""The race: the time in which each tuned method reaches an accuracy, beside centralised SGD as a limit."""
