"""Components that choose clients, for the option `participation`. Each module registers one or several of them."""
