"""Components that choose clients: the values of the option `participation`. Each module registers some of them."""
