"""Who trains at a time, where that is not everyone: the next client is drawn from those that do not."""

from collections.abc import Collection, Sequence
from dataclasses import dataclass

from fedraa.rng import generator


@dataclass(frozen=True)
class Concurrency:
    """At most `most` of so many clients train at a time; None: all do. A function of the seed, nothing to save."""

    clients: int
    most: int | None
    seed: int

    @property
    def limited(self) -> bool:
        return self.most is not None and self.most < self.clients

    def first(self) -> Sequence[int]:
        """The clients that begin."""
        if self.most is None or not self.limited:
            return range(self.clients)
        drawn: list[int] = generator(self.seed, "concurrency").choice(self.clients, self.most, replace=False).tolist()
        return drawn

    def next(self, client: int, task: int, busy: Collection[int], left_out: Collection[int] = ()) -> tuple[int, ...]:
        """Who trains after this client's `task`, if anyone: any that is neither `busy` nor `left_out`.

        Where all train, that is the client itself.
        """
        if not self.limited:
            return () if client in left_out else (client,)
        if left_out and len({*busy, *left_out}) == self.clients:
            return ()
        rng = generator(self.seed, "concurrency", task)
        while (drawn := int(rng.integers(self.clients))) in busy or drawn in left_out:
            pass
        return (drawn,)
