"""The ledger of a server: its decisions about tasks and about failed clients. The ledger holds no parameters."""
