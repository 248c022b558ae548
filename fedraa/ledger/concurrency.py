"""The limit on clients that train at a time. The next client is drawn from the idle ones."""

from collections.abc import Collection, Sequence
from dataclasses import dataclass

from fedraa.rng import generator


@dataclass(frozen=True)
class Concurrency:
    """A limit of `most` clients at a time. None: all train.

    Draws follow from the seed, so there is no state to save.
    """

    clients: int
    most: int | None
    seed: int

    @property
    def limited(self) -> bool:
        return self.most is not None and self.most < self.clients

    def first(self) -> Sequence[int]:
        """Return the clients that begin."""
        if self.most is None or not self.limited:
            return range(self.clients)
        drawn: list[int] = generator(self.seed, "concurrency").choice(self.clients, self.most, replace=False).tolist()
        return drawn

    def next(self, client: int, task: int, busy: Collection[int], left_out: Collection[int] = ()) -> tuple[int, ...]:
        """Return the client that trains after this client's `task`: one that is neither `busy` nor `left_out`, or none.

        Without a limit it is the client itself.

        Args:
            client: The client of the ended task.
            task: The number of the task.
            busy: Clients that train.
            left_out: Quarantined clients.
        """
        if not self.limited:
            return () if client in left_out else (client,)
        if left_out and len({*busy, *left_out}) == self.clients:
            return ()
        rng = generator(self.seed, "concurrency", task)
        while (drawn := int(rng.integers(self.clients))) in busy or drawn in left_out:
            pass
        return (drawn,)
