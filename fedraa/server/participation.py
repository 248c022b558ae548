"""Who takes part in a round."""

from collections.abc import Sequence
from dataclasses import dataclass

from fedraa.rng import generator


@dataclass(frozen=True)
class Participation:
    """All clients, a fixed-size sample, or each client on its own with a probability.

    `kind` is all, sample (`value` clients, HeteroFL and FedRolex) or bernoulli (with probability `value`,
    FedSAM). A Bernoulli round that draws nobody is drawn again.
    """

    kind: str = "all"
    value: float = 1.0

    @classmethod
    def parse(cls, spec: str, clients: int) -> "Participation":
        """From `all`, `sample:K` or `bernoulli:P`; ValueError for anything else."""
        kind, _, number = spec.partition(":")
        try:
            value = 1.0 if spec == "all" else float(number)
        except ValueError:
            value = -1.0
        good = {
            "all": spec == "all",
            "sample": 1 <= value <= clients and value == int(value),
            "bernoulli": 0 < value <= 1,
        }
        if not good.get(kind, False):
            raise ValueError(
                f"participation: {spec!r} is none of all, sample:K with K from 1 to {clients}, or bernoulli:P "
                "with P over 0 and at most 1"
            )
        return cls(kind, value)

    def cohort(self, clients: int, round: int, seed: int) -> Sequence[int]:
        """The clients of a round, ascending and never empty."""
        if self.kind == "all":
            return range(clients)
        for attempt in range(clients * 1000):
            rng = generator(seed, "cohort", round, attempt)
            if self.kind == "sample":
                return sorted(rng.choice(clients, int(self.value), replace=False).tolist())
            cohort: list[int] = (rng.random(clients) < self.value).nonzero()[0].tolist()
            if cohort:
                return cohort
        raise ValueError(f"participation: bernoulli:{self.value:g} draws nobody of {clients} clients; raise it")
