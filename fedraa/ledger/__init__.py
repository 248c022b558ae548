"""The ledger: the part of a server that decides about tasks and about failed clients. It holds no parameters."""
