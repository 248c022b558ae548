"""Components that choose clients, for the option `participation`. Each module registers some of them."""
