"""The decisions of a server: the tasks of clients, and the policy for failed clients. It holds no parameters."""
