"""Who takes part in a round."""

from abc import ABC, abstractmethod
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from operator import index

import numpy as np

from fedraa.components.calls import calling
from fedraa.components.registry import Seam
from fedraa.components.text import text_of
from fedraa.numbers import Count, Share
from fedraa.rng import generator

DRAWS = 1000  # of a cohort per client, while nobody is drawn
TAKES = "is none of all, sample:K with K from 1 to the number of clients, or bernoulli:P with P over 0 and at most 1"


class Participation(ABC):
    """Draws the cohort of each round."""

    @abstractmethod
    def cohort(self, clients: int, round: int, rng: np.random.Generator) -> Sequence[int]:
        """The clients 0 to `clients` - 1 that take part, each once; if nobody does it is asked again."""


@dataclass(frozen=True)
class All(Participation):
    """Every client."""

    def cohort(self, clients: int, round: int, rng: np.random.Generator) -> Sequence[int]:
        return range(clients)


@dataclass(frozen=True)
class Sample(Participation):
    """So many clients, without replacement (HeteroFL, FedRolex)."""

    count: Count

    def cohort(self, clients: int, round: int, rng: np.random.Generator) -> Sequence[int]:
        if self.count > clients:
            raise ValueError(f"participation: 'sample:{self.count}' {TAKES}, {clients} here")
        drawn: list[int] = rng.choice(clients, self.count, replace=False).tolist()
        return drawn


@dataclass(frozen=True)
class Bernoulli(Participation):
    """Each client on its own with the probability `share` (FedSAM)."""

    share: Share

    def cohort(self, clients: int, round: int, rng: np.random.Generator) -> Sequence[int]:
        drawn: list[int] = (rng.random(clients) < self.share).nonzero()[0].tolist()
        return drawn


def draw_cohort(
    participation: Participation, clients: int, round: int, seed: int, left_out: Collection[int] = (), alone: int = 0
) -> Sequence[int]:
    """The clients of a round, ascending and never empty; ValueError if that cannot be had.

    They are drawn as ever, and those that are `left_out` are taken away: who else is drawn does not depend on them.
    In the first `alone` rounds it is one client, the first.
    """
    if round < alone:
        return [next(client for client in range(clients) if client not in left_out)]
    for attempt in range(clients * DRAWS):
        with calling("participation", participation):
            drawn = participation.cohort(clients, round, generator(seed, "cohort", round, attempt))
            if (
                isinstance(drawn, range) and drawn == range(clients) and not left_out
            ):  # at a million clients a quick answer
                return range(clients)
            cohort = sorted(map(index, drawn))
        if cohort:
            if len(set(cohort)) < len(cohort) or not 0 <= cohort[0] <= cohort[-1] < clients:
                who = type(participation).__name__
                raise ValueError(
                    f"participation: {who} drew {cohort}; takes clients from 0 to {clients - 1}, each once"
                )
            if among := [client for client in cohort if client not in left_out]:
                return among
    nobody = "nobody but clients that are left out" if left_out else "nobody"
    raise ValueError(f"participation: {text_of(participation)} draws {nobody}, of {clients} clients; raise it")


def _short(text: str) -> Participation:
    """From `sample:K` or `bernoulli:P`."""
    kind, _, number = text.partition(":")
    try:
        value = float(number)
    except ValueError:
        value = 0.0
    if kind == "sample" and value >= 1 and value.is_integer():
        return Sample(int(value))
    if kind == "bernoulli" and 0 < value <= 1:
        return Bernoulli(value)
    own = "" if kind in ("sample", "bernoulli") else ", or an own one as package.module:Name"
    raise ValueError(f"participation: {text!r} {TAKES}{own}")


PARTICIPATION: Seam[Participation] = Seam(
    "participation", ("cohort",), {"all": All, "sample": Sample, "bernoulli": Bernoulli}, _short
)
