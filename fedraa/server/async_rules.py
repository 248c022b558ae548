"""Rules of an asynchronous server: what becomes of the model when an update arrives."""

from abc import ABC, abstractmethod
from copy import deepcopy
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple, Self

import numpy as np

from fedraa.components import Seam, Stateful, calling
from fedraa.messages import Index, Vector
from fedraa.server.staleness import STALENESS

HEAVIEST = 1e3  # weight of an update; the usual ones are in [0, 1]


@dataclass(frozen=True, slots=True, eq=False)
class Arrival:
    """An update that has arrived, on the coordinates `where` of the model.

    `new` and `sent` [k] are what came and what went, not to be changed. `staleness` counts the updates of the fragment
    in between; `samples` are the client's, `loss` its mean training loss.
    """

    client: int
    fragment: int
    where: Index | slice
    new: Vector
    sent: Vector
    staleness: int
    samples: int
    loss: float

    @property
    def delta(self) -> Vector:
        """What the client changed [k]."""
        return self.new - self.sent


@dataclass(frozen=True, eq=False)
class AsyncModel:
    """What a rule works on: `params` [d], changed in place; how many clients and fragments there are."""

    params: Vector
    clients: int
    fragments: int


class Taken(NamedTuple):
    """What became of an arrival: the weight that the log shows, and whether the model is a new version now."""

    weight: float
    advanced: bool = True


class AsyncRule(Stateful, ABC):
    """Takes updates in, one at a time. An own one needs `take`, and `start` for what it keeps:

        class LessOfTheFirst(AsyncRule):
            def take(self, arrival, model):
                weight = 0.6 / (1 + arrival.client)
                model.params[arrival.where] += np.float32(weight) * arrival.delta
                return Taken(weight)

    `keeps` names its state, `per_step` how many arrivals make a new version, `blends` tells that all it does is to mix
    the arrival in by `weight(staleness)`, so that shards of the server can do it. A run works on a copy of its own.
    """

    keeps: ClassVar[str] = ""
    blends: ClassVar[bool] = False
    asynchronous: ClassVar[bool] = True

    @property
    def per_step(self) -> int:
        return 1

    def bind(self, model: AsyncModel) -> Self:
        own = deepcopy(self)
        own.start(model)
        return own

    def start(self, model: AsyncModel) -> None:
        """Makes room for what is kept."""

    @abstractmethod
    def take(self, arrival: Arrival, model: AsyncModel) -> Taken:
        """Takes one update in: `model.params` may change on the coordinates `arrival.where`, or anywhere."""

    def weight(self, staleness: int) -> float:
        """The weight of an arrival, if that is all there is to the rule."""
        raise AssertionError(f"{type(self).__name__} does not blend")

    def memory(self, size: int, clients: int) -> int:
        """Bytes that it takes besides the model; a run that has not so much is refused."""
        return 0


@dataclass
class StalenessMix(AsyncRule):
    """theta <- (1 - a) theta + a theta_new with a = mixing * s(staleness) (FedAsync, Fed-RAA)."""

    mixing: float = 0.6
    staleness: Any = "constant"

    blends: ClassVar[bool] = True

    def __post_init__(self) -> None:
        self._factor = STALENESS.make(self.staleness)

    def take(self, arrival: Arrival, model: AsyncModel) -> Taken:
        mix = self.weight(arrival.staleness)
        blend(model.params, arrival.where, arrival.new, mix)
        return Taken(mix)

    def weight(self, staleness: int) -> float:
        return self.mixing * factor_at(staleness, self._factor)

    def state(self) -> dict[str, Any]:
        return {}


@dataclass
class Buffer(AsyncRule):
    """FedBuff (Nguyen et al. 2022): theta <- theta + server_lr / K * sum of s(staleness) * delta, every K arrivals.

    The version and the step count flushes; what is in the buffer when the run ends is dropped.
    """

    size: int = 10
    staleness: Any = "polynomial"
    server_lr: float = 1.0

    keeps: ClassVar[str] = "buffer [d]"

    def __post_init__(self) -> None:
        self._factor = STALENESS.make(self.staleness)

    @property
    def per_step(self) -> int:
        return self.size

    def start(self, model: AsyncModel) -> None:
        self._total = np.zeros(len(model.params), np.float32)
        self._count = 0

    def take(self, arrival: Arrival, model: AsyncModel) -> Taken:
        weight = factor_at(arrival.staleness, self._factor)
        self._total[arrival.where] += np.float32(weight) * arrival.delta
        self._count += 1
        full = self._count == self.size
        if full:
            np.add(model.params, np.float32(self.server_lr / self.size) * self._total, out=model.params)
            self._total.fill(0)
            self._count = 0
        return Taken(weight * self.server_lr / self.size, full)

    def memory(self, size: int, clients: int) -> int:
        return 4 * size

    def state(self) -> dict[str, Any]:
        return {"total": self._total, "count": self._count}

    def restore(self, state: dict[str, Any]) -> None:
        self._total[:], self._count = state["total"], state["count"]


def blend(params: Vector, where: Index | slice, new: Vector, mix: float) -> None:
    """theta <- (1 - mix) theta + mix theta_new, in place on the coordinates `where`; element by element.

    However the coordinates are divided among calls, the bits are the same.
    """
    mixed = params[where]
    mixed *= np.float32(1 - mix)
    mixed += np.float32(mix) * new
    if not isinstance(where, slice):  # of which it is a view
        params[where] = mixed


def factor_at(staleness: int, factor: Any) -> float:
    """A StalenessWeight's factor; ValueError if that is no finite number, or one that no model survives."""
    with calling("staleness", factor):
        weight = factor(staleness)
    if is_finite(weight) and abs(weight) <= HEAVIEST:
        return float(weight)
    raise ValueError(
        f"staleness: {getattr(factor, '__name__', factor)} gave {weight!r}; takes a finite number"
        + (f" of at most {HEAVIEST:g} in size" if is_finite(weight) else "")
    )


def is_finite(number: object) -> bool:
    """Whether this is a number, and neither infinite nor NaN."""
    return isinstance(number, int | float | np.integer | np.floating) and bool(np.isfinite(number))


ASYNC_RULE: Seam[AsyncRule] = Seam(
    "async_rule", ("bind", "take", "state", "restore"), {"staleness-mix": StalenessMix, "buffer": Buffer}
)
