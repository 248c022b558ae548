"""Rules of an asynchronous server: what becomes of the model when an update arrives."""

from abc import ABC, abstractmethod
from copy import deepcopy
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple, Self

import numpy as np

from fedraa.components import Stateful, calling, saved
from fedraa.errors import short_text
from fedraa.messages import Index, Vector
from fedraa.numbers import Count, NotNegative, Positive, Share
from fedraa.server.optimizers import SERVER_OPTIMIZER, ServerOptimizer
from fedraa.server.participation_correction import balanced
from fedraa.server.staleness import STALENESS, among
from fedraa.vectors.chunked import accumulate, over, times
from fedraa.vectors.delta_view import Change
from fedraa.vectors.finite import is_finite
from fedraa.vectors.index_runs import Runs, Where, parts_of

HEAVIEST = 1e3  # weight of an update; the usual ones are in [0, 1]


@dataclass(frozen=True, slots=True, eq=False)
class Arrival:
    """A client update that has arrived at an asynchronous server. Its arrays are read-only.

    Attributes:
        client: The client, from 0.
        fragment: The fragment that it trained, from 0.
        where: Coordinates [k] of the fragment in the model, as indices or as a slice.
        new: Trained weights [k].
        sent: Weights [k] that the client received.
        staleness: Updates of the fragment that were applied since the client received it.
        samples: Number of the client's training samples.
        loss: Mean training loss of the task.
        balance: The client's factor of data against speed; 1 unless `balance` of the rule is set.
        runs: The same coordinates as contiguous runs, if they are long.
    """

    client: int
    fragment: int
    where: Index | slice
    new: Vector
    sent: Vector
    staleness: int
    samples: int
    loss: float
    balance: float = 1.0
    runs: Runs | None = None

    @property
    def change(self) -> Change:
        """The delta, computed in chunks that fit in the cache."""
        return Change(self.places, self.new, self.sent)

    @property
    def delta(self) -> Vector:
        """Trained weights minus received weights [k]."""
        return self.new - self.sent

    @property
    def places(self) -> Where:
        """The coordinates in the form in which a pass over the model is fastest."""
        return self.where if self.runs is None else self.runs


@dataclass(frozen=True, eq=False)
class AsyncModel:
    """The global model as an asynchronous rule sees it.

    Attributes:
        params: Parameters [d]. The rule changes them in place.
        clients: Number of clients.
        fragments: Number of fragments.
        at_a_time: Clients that train at a time; None means all.
        common: For each fragment, the positions in its buffer of the coordinates that all fragments hold.
    """

    params: Vector
    clients: int
    fragments: int
    at_a_time: int | None = None
    common: tuple[Index, ...] = ()

    @property
    def at_work(self) -> int:
        """Number of clients that train at a time."""
        return min(self.clients, self.at_a_time or self.clients)


class Taken(NamedTuple):
    """The result of applying a client update.

    Attributes:
        weight: Weight of the update, as the log shows it; 0 if the update was ignored.
        advanced: True if the model has a new version. If False, the rule must not have changed the model.
        held: True if the client trains the weights that it already holds again, with other minibatches. The server
            then sends it nothing.
    """

    weight: float
    advanced: bool = True
    held: bool = False


class AsyncRule(Stateful, ABC):
    """Takes updates in, one at a time. An own one needs `take`, and `start` for what it keeps:

        class LessOfTheFirst(AsyncRule):
            def take(self, arrival, model):
                weight = 0.6 / (1 + arrival.client)
                model.params[arrival.where] += np.float32(weight) * arrival.delta
                return Taken(weight)

    `keeps` names its state, `per_step` how many arrivals make a new version, `blends` tells that all it does is to mix
    the arrival in by `weight(staleness, balance)`, so that shards of the server can do it; one that `adds` mixes in its
    delta, of which coordinates that all fragments hold take the share `in_common`. `measures` tells that weights depend
    on the numbers that arrive, which a log has not; `weighs` that an arrival moves the model by its weight times what
    came, no further; `waits` that nothing goes on while one client is away. `balance` is the power by which clients are
    told apart by their data and speed (default: not at all). A run works on a copy of its own.
    """

    keeps: ClassVar[str] = ""
    blends: ClassVar[bool] = False
    measures: ClassVar[bool] = False
    weighs: ClassVar[bool] = False
    waits: ClassVar[bool] = False
    adds: ClassVar[bool] = False
    balance: NotNegative = 0.0
    in_common: float = 1.0
    asynchronous: ClassVar[bool] = True

    def __init_subclass__(cls) -> None:
        """Who overrides `take` of a rule that blends or weighs does something else, perhaps."""
        if "take" in vars(cls) and "blends" not in vars(cls):
            cls.blends = cls.adds = False
        if "take" in vars(cls) and "weighs" not in vars(cls):
            cls.weighs = False

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

    def leave(self, client: int) -> None:
        """A client is left out from now on, for its work came to nothing: a rule that `waits` does so without it."""

    def weight(self, staleness: int, balance: float = 1.0) -> float:
        """The weight of an arrival, if that is all there is to the rule."""
        raise AssertionError(f"{type(self).__name__} does not blend")

    def memory(self, size: int, clients: int) -> int:
        """Bytes that it takes besides the model; a run that has not so much is refused."""
        return 0


@dataclass
class StalenessMix(AsyncRule):
    """theta <- (1 - a) theta + a theta_new with a = mixing * s(staleness) (FedAsync, Fed-RAA).

    `balance` is the power of data against speed in a further factor of a.
    """

    mixing: Share = 0.6
    staleness: Any = "constant"
    balance: NotNegative = 0.0

    blends: ClassVar[bool] = True

    def __post_init__(self) -> None:
        self._factor = STALENESS.make(self.staleness)

    def start(self, model: AsyncModel) -> None:
        self._factor = among(self._factor, model.at_work)

    def take(self, arrival: Arrival, model: AsyncModel) -> Taken:
        mix = self.weight(arrival.staleness, arrival.balance)
        blend(model.params, arrival.places, arrival.new, mix)
        return Taken(mix)

    def weight(self, staleness: int, balance: float = 1.0) -> float:
        return balanced(self.mixing * factor_at(staleness, self._factor), balance)

    def state(self) -> dict[str, Any]:
        return {}


@dataclass
class Buffered(AsyncRule):
    """A rule that moves the model every `size` arrivals; the version and the step count that."""

    size: Count = 10

    @property
    def per_step(self) -> int:
        return self.size


@dataclass
class Buffer(Buffered):
    """FedBuff (Nguyen et al. 2022): theta <- theta + server_lr / K * sum of s(staleness) * delta, every K arrivals.

    With an `optimizer` that is the delta along which it steps (FedBuff's server momentum); the log then has s alone,
    for how far the model moves is the optimizer's. What is in the buffer when the run ends is dropped. `balance` is the
    power of data against speed in a further factor of each delta, also over 1: the mean of a buffer weighs its deltas.
    """

    staleness: Any = "polynomial"
    server_lr: Positive = 1.0
    optimizer: Any = None
    balance: NotNegative = 0.0

    keeps: ClassVar[str] = "buffer [d]"

    def __post_init__(self) -> None:
        self._factor = STALENESS.make(self.staleness)
        if self.optimizer is not None:
            self.optimizer = SERVER_OPTIMIZER.make(self.optimizer)

    def start(self, model: AsyncModel) -> None:
        size = len(model.params)
        self._factor = among(self._factor, model.at_work)
        self._total = np.zeros(size, np.float32)
        self._count = 0
        self._stepping = None if self.optimizer is None else self.optimizer.bind(size)
        self._moved = np.zeros(0 if self._stepping is None else size, bool)

    def take(self, arrival: Arrival, model: AsyncModel) -> Taken:
        weight = factor_at(arrival.staleness, self._factor) * arrival.balance
        accumulate(self._total, arrival.places, weight, arrival.new, arrival.sent)
        self._count += 1
        if self._stepping is not None:
            self._moved[arrival.where] = True
        full = self._count == self.size
        if full:
            self._step(model.params, self.server_lr / self.size)
            self._total.fill(0)
            self._moved.fill(False)
            self._count = 0
        return Taken(weight * self.server_lr / self.size if self._stepping is None else weight, full)

    def _step(self, params: Vector, weight: float) -> None:
        """Moves `params` [d] along the weighted buffer."""
        if self._stepping is None:
            accumulate(params, slice(None), weight, self._total)
            return
        with calling("server_optimizer", self._stepping):
            self._stepping.step(params, np.float32(weight) * self._total, self._moved)

    def memory(self, size: int, clients: int) -> int:
        if self.optimizer is None:
            return 4 * size
        return 5 * size + (self.optimizer.memory(size) if isinstance(self.optimizer, ServerOptimizer) else 0)

    def state(self) -> dict[str, Any]:
        kept = {"total": self._total, "count": self._count}
        return kept if self._stepping is None else kept | {"moved": self._moved, "optimizer": saved(self._stepping)}

    def restore(self, state: dict[str, Any]) -> None:
        self._total[:], self._count = state["total"], state["count"]
        if self._stepping is not None:
            self._moved[:] = state["moved"]
            self._stepping.restore(state["optimizer"])


def blend(params: Vector, where: Where, new: Vector, mix: float) -> None:
    """theta <- (1 - mix) theta + mix theta_new, in place on the coordinates `where`; element by element.

    However the coordinates are divided among calls, the bits are the same.
    """
    old, fresh = np.float32(1 - mix), np.float32(mix)

    def mixed(piece: slice) -> None:
        change = times(fresh, new[piece])
        for values, part in parts_of(params, where, piece):
            values *= old
            values += change[part].reshape(values.shape)

    over(len(new), mixed)


def factor_at(staleness: int, factor: Any) -> float:
    """A StalenessWeight's factor; ValueError if that is no finite number, or one that no model survives."""
    with calling("staleness", factor):
        weight = factor(staleness)
    if is_finite(weight) and abs(weight) <= HEAVIEST:
        return float(weight)
    raise ValueError(
        f"staleness: {getattr(factor, '__name__', factor)} gave {short_text(weight)}; takes a finite number"
        + (f" of at most {HEAVIEST:g} in size" if is_finite(weight) else "")
    )
