"""Detection of the width groups of any module by running it once."""
