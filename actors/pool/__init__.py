"""Worker actors behind the executor's interface."""
