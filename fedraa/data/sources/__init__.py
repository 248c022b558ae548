"""Where samples come from, and how a client reads its own."""
