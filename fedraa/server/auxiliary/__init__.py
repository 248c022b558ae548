"""State that rides along with rounds."""
