"""The limit on the number of clients that train at the same time."""

from collections.abc import Collection, Sequence
from dataclasses import dataclass

from fedraa.rng import generator


@dataclass(frozen=True)
class Concurrency:
    """The rule that at most `limit` clients train at the same time; None lets all clients train.

    With a limit, the next client is a random idle client. The draw depends only on the seed and on the number of the
    task that has ended.
    """

    clients: int
    limit: int | None
    seed: int

    @property
    def limited(self) -> bool:
        return self.limit is not None and self.limit < self.clients

    def first_clients(self) -> Sequence[int]:
        """Return the clients that train first."""
        if self.limit is None or not self.limited:
            return range(self.clients)
        rng = generator(self.seed, "concurrency start")
        drawn: list[int] = rng.choice(self.clients, self.limit, replace=False).tolist()
        return drawn

    def next_clients(
        self, client: int, task: int, busy: Collection[int], left_out: Collection[int] = ()
    ) -> tuple[int, ...]:
        """Return the client that gets a task after a task of `client` ended; empty if no client can get it.

        If there is no limit on the clients that train at the same time, this is `client` itself. Otherwise it is a
        random idle client.

        Args:
            client: The client of the ended task.
            task: The number of the ended task, which determines the draw.
            busy: Clients that train now.
            left_out: Quarantined clients, which get no task.
        """
        if not self.limited:
            return () if client in left_out else (client,)
        if left_out and len({*busy, *left_out}) == self.clients:
            return ()
        rng = generator(self.seed, "concurrency", task)
        drawn = int(rng.integers(self.clients))
        while drawn in busy or drawn in left_out:
            drawn = int(rng.integers(self.clients))
        return (drawn,)
