"""Who trains at a time, where that is not everyone: the next client is drawn from those that do not."""

from collections.abc import Container, Sequence
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

    def next(self, client: int, task: int, busy: Container[int]) -> int:
        """Who trains after this client's `task`, any that is not `busy`: the client itself where all train."""
        if not self.limited:
            return client
        rng = generator(self.seed, "concurrency", task)
        while (drawn := int(rng.integers(self.clients))) in busy:
            pass
        return drawn
