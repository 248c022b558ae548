"""Methods, each of which consists of four choices, and checks of combinations of choices."""
