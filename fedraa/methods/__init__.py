"""A method is four choices; the table of those that are built in."""
