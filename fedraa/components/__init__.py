"""Components: the parts of a run that a user can name, import or make."""
