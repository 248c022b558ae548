"""The part of a server that decides about tasks and failed clients. It holds no parameters."""
