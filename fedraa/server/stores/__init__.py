"""Where an asynchronous server keeps its parameters."""
