"""What the server does with what comes back: asynchronous fragments, synchronous rounds. Shards go without torch."""
