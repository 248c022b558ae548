"""The choice of the clients that train next."""

from abc import ABC, abstractmethod
from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from functools import partial
from operator import index
from typing import ClassVar

import numpy as np

from fedraa.components.calls import convert_errors
from fedraa.components.registry import ComponentRegistry
from fedraa.components.state import Stateful
from fedraa.components.text import text_of
from fedraa.errors import InputError, short_text
from fedraa.ledger.selection_context import SelectionContext
from fedraa.numbers import Count, Share, format_count
from fedraa.rng import generator

# If a cohort is empty, it is drawn again. The maximum number of draws is this number times the number of clients.
DRAWS_PER_CLIENT = 1000
EXPECTED = "all, sample:K with K from 1 to the number of clients, bernoulli:P or poisson:P with P over 0 and at most 1"


class Selection(Stateful, ABC):
    """The choice of clients by the server's observations, such as losses and durations.

    It chooses the cohort of each round, or the next client of an asynchronous method whenever a client has finished. A
    custom selection defines `choose`:

        class LeastTrained(Selection):
            def choose(self, view, rng):
                return sorted(view.candidates, key=view.participations.__getitem__)[: view.count]

    A checkpoint holds all attributes of the object, or those that its class names in `state_fields`. An attribute
    `count` is the number of clients per round.

    Attributes:
        rounds_only: True if the selection has no meaning for an asynchronous method.
        is_private: True if the choice depends neither on losses nor on numbers of samples.
    """

    rounds_only: ClassVar[bool] = False
    is_private: ClassVar[bool] = False

    @abstractmethod
    def choose(self, view: SelectionContext, rng: np.random.Generator) -> Sequence[int]:
        """Return at least one client from `view.candidates`, each at most once.

        An asynchronous server needs exactly `view.count` clients. Draw random numbers only from `rng`.
        """

    def cohort(self, clients: int, round: int, rng: np.random.Generator) -> Sequence[int]:
        """Raise AssertionError. In the subclass Participation, this method returns the clients of a round."""
        raise AssertionError(f"{type(self).__name__} needs observations about clients")

    def expected_size(self, clients: int) -> float | None:
        """Return the expected number of clients of a round, or None if it is unknown."""
        return count_of(self)


@dataclass
class CountedSelection(Selection):
    """A selection with a number of clients per round.

    Attributes:
        count: Number of clients per round. None for an asynchronous method.
    """

    count: Count | None = None


class Participation(Selection):
    """A selection that chooses the cohort of each round without observations about clients."""

    rounds_only: ClassVar[bool] = True
    is_private: ClassVar[bool] = True

    def choose(self, view: SelectionContext, rng: np.random.Generator) -> Sequence[int]:
        return self.cohort(len(view.samples), view.step, rng)

    @abstractmethod
    def cohort(self, clients: int, round: int, rng: np.random.Generator) -> Sequence[int]:
        """Return clients from 0 to `clients` - 1, each at most once. An empty cohort is drawn again.

        Args:
            clients: Number of clients.
            round: The round, from 0.
            rng: The source of randomness.
        """


@dataclass(frozen=True)
class All(Participation):
    """Participation of every client."""

    def cohort(self, clients: int, round: int, rng: np.random.Generator) -> Sequence[int]:
        return range(clients)

    def expected_size(self, clients: int) -> float:
        return clients


@dataclass(frozen=True)
class Sample(Participation):
    """Uniform sampling of `count` clients without replacement (HeteroFL, FedRolex)."""

    count: Count

    def cohort(self, clients: int, round: int, rng: np.random.Generator) -> Sequence[int]:
        if self.count > clients:
            problem = f"the run has {format_count(clients, 'client')}"
            raise InputError("participation", problem, got=f"sample:{self.count}", expected=EXPECTED)
        drawn: list[int] = rng.choice(clients, self.count, replace=False).tolist()
        return drawn


@dataclass(frozen=True)
class Bernoulli(Participation):
    """Independent participation of each client with the probability `share` (FedSAM)."""

    share: Share

    def cohort(self, clients: int, round: int, rng: np.random.Generator) -> Sequence[int]:
        drawn: list[int] = (rng.random(clients) < self.share).nonzero()[0].tolist()
        return drawn

    def expected_size(self, clients: int) -> float:
        return self.share * clients


@dataclass(frozen=True)
class Poisson(Bernoulli):
    """Poisson sampling: Bernoulli with cohorts that may be empty.

    An empty round ends at once. Only with this participation does the sampling of clients reduce the privacy loss.
    """


# The participations that draw each client independently, by name.
SHARES: dict[str, type[Bernoulli]] = {"bernoulli": Bernoulli, "poisson": Poisson}


def count_of(selection: Selection) -> int | None:
    """Return the selection's number of clients per round, or None if it has none."""
    count: int | None = getattr(selection, "count", None)
    return count


def expected_cohort(participation: object, clients: int) -> float | None:
    """Return the expected number of clients in a round, or None if it is unknown.

    Args:
        participation: A participation, or a custom component with only the method `cohort`.
        clients: Number of clients.
    """
    if not isinstance(participation, Selection):
        return None
    return participation.expected_size(clients)


def needs_observations(selection: Selection) -> bool:
    """Return True if the selection needs observations about clients.

    A Participation needs none. A custom participation may also be any object with a method `cohort`.
    """
    return isinstance(selection, Selection) and not isinstance(selection, Participation)


def draw_cohort(
    participation: Selection, clients: int, round: int, seed: int, left_out: Collection[int] = ()
) -> Sequence[int]:
    """Return the clients of a round, ascending. Only `Poisson` may return no clients.

    Quarantined clients are removed after the draw, so that they do not affect the draw of others.

    Args:
        participation: Chooses the clients.
        clients: Number of clients.
        round: The round, from 0.
        seed: Seed of the run.
        left_out: Quarantined clients.

    Raises:
        InputError: The participation returns no clients, or clients that do not exist.
    """
    for attempt in range(clients * DRAWS_PER_CLIENT):
        with convert_errors("participation", participation):
            drawn = participation.cohort(clients, round, generator(seed, "cohort", round, attempt))
            # Checking each of a million clients would be slow, and all of them take part anyway.
            if isinstance(drawn, range) and drawn == range(clients) and not left_out:
                return range(clients)
            cohort = check_cohort(participation, drawn, clients)
        remaining = [client for client in cohort if client not in left_out]
        if remaining or isinstance(participation, Poisson):
            return remaining
    problem = f"it draws none of the {clients} clients"
    if left_out:
        problem += ", or only quarantined ones"
    raise InputError("participation", problem, got=text_of(participation), hint="give a larger number or probability")


def check_cohort(
    selection: Selection, drawn: Sequence[int], clients: int, *, field: str = "participation"
) -> list[int]:
    """Return the chosen clients, ascending.

    Args:
        selection: The selection that chose the clients, for errors.
        drawn: The chosen clients.
        clients: Number of clients of the run.
        field: The field of the experiment that has the selection, for errors.

    Raises:
        InputError: Some client does not exist, or occurs twice.
    """
    cohort = sorted(map(index, drawn))
    if cohort and (len(set(cohort)) < len(cohort) or not 0 <= cohort[0] <= cohort[-1] < clients):
        problem = f"{type(selection).__name__} drew {short_text(cohort)}"
        raise InputError(field, problem, expected=f"clients from 0 to {clients - 1}, each once")
    return cohort


def _parse_text(text: str, field: str = "participation") -> Selection:
    """Return the selection for a text such as `sample:K`, `bernoulli:P` or `oort`. `field` is the field of errors."""
    kind, _, number = text.partition(":")
    make = PARTICIPATION.names().get(kind)
    if make is not None and ":" not in text and kind not in ("sample", *SHARES):
        return make()
    try:
        value = float(number)
    except ValueError:
        value = 0.0
    if kind in SHARES and 0 < value <= 1:
        return SHARES[kind](value)
    if make is not None and kind not in ("all", *SHARES) and value >= 1 and value.is_integer():
        return make(count=int(value))
    if make is None or kind in ("all", "sample", *SHARES):
        expected = EXPECTED
        if make is None:
            others = ", ".join(name for name in PARTICIPATION.names() if name not in ("all", "sample", *SHARES))
            expected += f", or one of {others}, or a custom one as package.module:Name"
        raise InputError(field, got=text, expected=expected)
    raise InputError(field, got=text, expected=f"{kind}:K with a number of clients K")


PARTICIPATION: ComponentRegistry[Selection] = ComponentRegistry(
    "participation", ("cohort",), {"all": All, "sample": Sample, **SHARES}, _parse_text, base="Participation"
)
# The same components as in PARTICIPATION. An error about one of them names the field `next_client`.
NEXT_CLIENT: ComponentRegistry[Selection] = replace(
    PARTICIPATION, name="next_client", short=partial(_parse_text, field="next_client"), base="Selection"
)
