"""Components that choose clients by the option `participation`. Each module registers some of them."""
