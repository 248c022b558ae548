"""What one run is, as values."""
