"""Participation: the choice of clients for a round."""

from abc import ABC, abstractmethod
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from operator import index

import numpy as np

from fedraa.components.calls import convert_errors
from fedraa.components.registry import ComponentRegistry
from fedraa.components.text import text_of
from fedraa.errors import InputError, short_text
from fedraa.numbers import Count, Share
from fedraa.rng import generator

# Number of draws of a cohort, as a multiple of the number of clients, after which an empty cohort is an error.
DRAWS_PER_CLIENT = 1000
EXPECTED = "all, sample:K with K from 1 to the number of clients, bernoulli:P or poisson:P with P over 0 and at most 1"


class Participation(ABC):
    """The choice of the cohort of each round."""

    @abstractmethod
    def cohort(self, clients: int, round: int, rng: np.random.Generator) -> Sequence[int]:
        """Return clients from 0 to `clients` - 1, each at most once. An empty cohort is drawn again.

        Args:
            clients: Number of clients.
            round: The round, from 0.
            rng: The source of randomness.
        """

    def expected_size(self, clients: int) -> float | None:
        """Return the expected number of clients of a round, or None if it is unknown."""
        return None


@dataclass(frozen=True)
class All(Participation):
    """Every client."""

    def cohort(self, clients: int, round: int, rng: np.random.Generator) -> Sequence[int]:
        return range(clients)

    def expected_size(self, clients: int) -> float:
        return clients


@dataclass(frozen=True)
class Sample(Participation):
    """A number of clients, without replacement (HeteroFL, FedRolex)."""

    count: Count

    def cohort(self, clients: int, round: int, rng: np.random.Generator) -> Sequence[int]:
        if self.count > clients:
            problem = f"there are {clients} clients"
            raise InputError("participation", problem, got=f"sample:{self.count}", expected=EXPECTED)
        drawn: list[int] = rng.choice(clients, self.count, replace=False).tolist()
        return drawn

    def expected_size(self, clients: int) -> float:
        return self.count


@dataclass(frozen=True)
class Bernoulli(Participation):
    """Each client independently with the probability `share` (FedSAM)."""

    share: Share

    def cohort(self, clients: int, round: int, rng: np.random.Generator) -> Sequence[int]:
        drawn: list[int] = (rng.random(clients) < self.share).nonzero()[0].tolist()
        return drawn

    def expected_size(self, clients: int) -> float:
        return self.share * clients


@dataclass(frozen=True)
class Poisson(Bernoulli):
    """Each client independently with the probability `share`, also if no client is drawn (Poisson sampling).

    A round without clients ends at once. Privacy counts only this participation as sampling.
    """


def draw_cohort(
    participation: Participation, clients: int, round: int, seed: int, left_out: Collection[int] = (), alone: int = 0
) -> Sequence[int]:
    """Return the clients of a round, ascending. Only `Poisson` may return no clients.

    Quarantined clients are removed after the draw, so they do not affect which other clients are drawn.

    Args:
        participation: Chooses the clients.
        clients: Number of clients.
        round: The round, from 0.
        seed: Seed of the run.
        left_out: Quarantined clients.
        alone: Number of first rounds in which only the first client trains.

    Raises:
        InputError: `participation` returns no clients, or wrong ones.
    """
    if round < alone:
        return [next(client for client in range(clients) if client not in left_out)]
    for attempt in range(clients * DRAWS_PER_CLIENT):
        with convert_errors("participation", participation):
            drawn = participation.cohort(clients, round, generator(seed, "cohort", round, attempt))
            # This is a fast path for a million clients.
            if isinstance(drawn, range) and drawn == range(clients) and not left_out:
                return range(clients)
            cohort = sorted(map(index, drawn))
        if cohort:
            if len(set(cohort)) < len(cohort) or not 0 <= cohort[0] <= cohort[-1] < clients:
                problem = f"{type(participation).__name__} drew {short_text(cohort)}"
                raise InputError("participation", problem, expected=f"clients from 0 to {clients - 1}, each once")
            remaining = [client for client in cohort if client not in left_out]
            if remaining:
                return remaining
        if isinstance(participation, Poisson):
            return []
    problem = f"it draws no client of {clients}"
    if left_out:
        problem += ", or only quarantined ones"
    raise InputError("participation", problem, got=text_of(participation), hint="raise it")


def _parse_text(text: str) -> Participation:
    """Return the participation that the text `sample:K`, `bernoulli:P` or `poisson:P` describes."""
    kind, _, number = text.partition(":")
    try:
        value = float(number)
    except ValueError:
        value = 0.0
    if kind == "sample" and value >= 1 and value.is_integer():
        return Sample(int(value))
    if kind == "bernoulli" and 0 < value <= 1:
        return Bernoulli(value)
    if kind == "poisson" and 0 < value <= 1:
        return Poisson(value)
    custom = "" if kind in ("sample", "bernoulli", "poisson") else ", or a custom one as package.module:Name"
    raise InputError("participation", got=text, expected=EXPECTED + custom)


PARTICIPATION: ComponentRegistry[Participation] = ComponentRegistry(
    "participation",
    ("cohort",),
    {"all": All, "sample": Sample, "bernoulli": Bernoulli, "poisson": Poisson},
    _parse_text,
)
