"""The decisions of a server: which client works on what, and which clients have failed. It holds no parameters."""
