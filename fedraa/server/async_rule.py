"""The interface of an update rule of an asynchronous server, and the registry of rules.

The rules are in `fedraa/methods`, each in the file of its paper.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from copy import deepcopy
from dataclasses import dataclass
from math import inf
from types import MappingProxyType
from typing import Any, ClassVar, NamedTuple, Self

import numpy as np
import numpy.typing as npt

from fedraa.components.calls import convert_errors
from fedraa.components.registry import ComponentRegistry
from fedraa.components.state import Stateful
from fedraa.errors import InputError
from fedraa.ledger.async_ledger import AsyncLedger
from fedraa.ledger.dispatch import Dispatch
from fedraa.messages import Index, Shapes, Vector
from fedraa.numbers import NotNegative
from fedraa.vectors.delta_view import DeltaView
from fedraa.vectors.finite import is_finite
from fedraa.vectors.index_runs import CoordinateSet, IndexRuns

# Largest absolute weight of an update that is accepted. Usual weights are in [0, 1].
MAX_WEIGHT = 1e3
NO_VALUES = np.zeros(0, np.float32)

Floats = npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True, eq=False)
class ClientUpdate:
    """A client update that has arrived at an asynchronous server. Its arrays are read-only.

    Attributes:
        client: The client, from 0.
        fragment: The fragment that the client trained, from 0.
        where: Coordinates [k] of the fragment in the model, as indices or as a slice.
        new: Trained weights [k].
        sent: Weights [k] that the client received.
        staleness: Updates that were applied since the client received the fragment: those of the fragment, or all of
            the server if the schedule's `staleness_clock` is `server`.
        samples: Number of the client's training samples.
        loss: Mean training loss of the task.
        balance: The client's factor of data against speed; 1 unless `participation_correction` of the rule is set.
        steps: Number of local steps that the client finished.
        path_length: Length of the client's path if each local gradient has length 1. For SGD it is the sum of the
            learning rates of its steps.
        runs: The coordinates `where` as contiguous runs, if the runs are long.
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
    steps: int = 1
    path_length: float = 1.0
    runs: IndexRuns | None = None

    @property
    def change(self) -> DeltaView:
        """The delta as a view, which computes chunks that fit in the cache."""
        return DeltaView(self.coordinates, self.new, self.sent)

    @property
    def delta(self) -> Vector:
        """Trained weights minus received weights [k]."""
        return self.new - self.sent

    @property
    def coordinates(self) -> CoordinateSet:
        """The coordinates of the fragment, in the form in which a pass over the model is fastest."""
        return self.where if self.runs is None else self.runs


@dataclass(frozen=True, eq=False)
class AsyncModel:
    """The global model as an asynchronous rule sees it.

    Attributes:
        params: Parameters [d]. The rule changes them in place.
        clients: Number of clients.
        fragments: Number of fragments.
        at_a_time: Clients that train at a time. None means all.
        common: For each fragment, the positions in its buffer of the coordinates that all fragments hold.
        tensors: The shape of each tensor of the model, in the order of `params`. If empty, the shapes are unknown.
        probabilities: The probability with which the server draws each client [N]; None: unknown.
        sent: Number of coordinates that clients send. None means all; personal layers are not sent.
        release_noise: Returns the noise [d] of central privacy for the sum of a full buffer, and the mask [d] of the
            coordinates that it covers. None without central privacy, and for a rule that does not add it.
    """

    params: Vector
    clients: int
    fragments: int
    at_a_time: int | None = None
    common: tuple[Index, ...] = ()
    tensors: Shapes = ()
    probabilities: Floats | None = None
    sent: int | None = None
    release_noise: Callable[[], tuple[Vector, npt.NDArray[np.bool_]]] | None = None

    @property
    def at_work(self) -> int:
        """Number of clients that train at a time."""
        return min(self.clients, self.at_a_time or self.clients)


class ApplyResult(NamedTuple):
    """The result of applying a client update.

    Attributes:
        weight: Weight of the update, as the log shows it, 0 if the update was ignored.
        new_version: True if the model has a new version. If False, the rule must not have changed the model.
        keep_task: True if the client continues with the weights that it received for this task, on other minibatches.
            The server then sends nothing to the client.
        unprotected: Number of coordinates that a robust aggregator could not protect in a new version.
    """

    weight: float
    new_version: bool = True
    keep_task: bool = False
    unprotected: int = 0


class AsyncRule(Stateful, ABC):
    """The rule by which an asynchronous server applies updates, one at a time.

    A custom rule defines `apply_update`, and `start` if it keeps state:

        class LessOfLaterClients(AsyncRule):
            def apply_update(self, update, model):
                weight = 0.6 / (1 + update.client)
                model.params[update.where] += np.float32(weight) * update.delta
                return ApplyResult(weight)

    A run works on its own copy of the rule.

    Attributes:
        keeps: A name for the rule's state, which messages use.
        refuses: Options of local training that break the rule, with the reason of each.
        per_step: Client updates per new version.
        is_convex_mix: True if the rule only computes (1 - a) * theta + a * w with a = `weight(staleness, balance)`, so
            that shards of the server can do it.
        is_delta_mix: True if the rule adds a * delta instead. For coordinates that all fragments hold, a is multiplied
            by `shared_weight`.
        needs_values: True if weights depend on the trained values, which are not in the log.
        bounded_by_weight: True if an update moves the model by at most its weight times the trained values.
        needs_all_clients: True if the model does not change while one client is away.
        adds_noise: True if the rule adds `model.release_noise` to each full buffer. With central privacy, the updates
            of other rules get noise one by one.
        uses_losses: True if weights depend on training losses, which central privacy does not protect.
        participation_correction: Power of a client's data against its speed in the weights; 0 turns it off.
    """

    keeps: ClassVar[str] = ""
    refuses: ClassVar[Mapping[str, str]] = MappingProxyType({})
    is_convex_mix: ClassVar[bool] = False
    needs_values: ClassVar[bool] = False
    bounded_by_weight: ClassVar[bool] = False
    needs_all_clients: ClassVar[bool] = False
    is_delta_mix: ClassVar[bool] = False
    adds_noise: ClassVar[bool] = False
    participation_correction: NotNegative = 0.0
    shared_weight: float = 1.0
    asynchronous: ClassVar[bool] = True

    def __init_subclass__(cls) -> None:
        """Check that a subclass which overrides `apply_update` declares again each guarantee that its base class has.

        Raises:
            TypeError: The subclass inherits a guarantee, which the new `apply_update` may not keep.
        """
        if "apply_update" not in vars(cls):
            return
        guarantees = ("is_convex_mix", "is_delta_mix", "bounded_by_weight")
        inherited = [name for name in guarantees if getattr(cls, name) and name not in vars(cls)]
        if inherited:
            names = " and ".join(inherited)
            raise TypeError(
                f"{cls.__name__} overrides `apply_update` of a rule with {names}; declare {names} in the class"
            )

    @property
    def per_step(self) -> int:
        return 1

    @property
    def uses_losses(self) -> bool:
        return False

    def bind(self, model: AsyncModel) -> Self:
        own = deepcopy(self)
        own.start(model)
        return own

    def start(self, model: AsyncModel) -> None:
        """Allocate the rule's state."""

    @abstractmethod
    def apply_update(self, update: ClientUpdate, model: AsyncModel) -> ApplyResult:
        """Apply one update: change `model.params` in place, on the coordinates `update.where` or on any others."""

    def look_ahead(self, values: Vector, where: CoordinateSet) -> None:
        """Change the values [k] that the server sends to a client, in place. By default the server sends the model.

        Args:
            values: The current values of the model on the coordinates.
            where: The coordinates in the model.
        """

    def leave(self, client: int) -> None:
        """Remove a client after failed tasks. A rule that `needs_all_clients` then waits only for the other clients."""

    def weight(self, staleness: int, balance: float = 1.0) -> float:
        """Return the weight of an update. Only a rule with `is_convex_mix` defines it."""
        raise AssertionError(f"{type(self).__name__} is no convex mix")

    def memory(self, size: int, clients: int) -> int:
        """Return the bytes of the rule's state. A run is refused if its machine does not have this memory free."""
        return 0


ASYNC_RULE: ComponentRegistry[AsyncRule] = ComponentRegistry("async_rule", ("bind", "apply_update", "state", "restore"))


def model_without_values(ledger: AsyncLedger) -> AsyncModel:
    """Return a model without parameters, on which a rule can make its decisions without training."""
    probabilities = None if ledger.routing is None else ledger.routing.probabilities
    return AsyncModel(
        NO_VALUES,
        ledger.clients,
        len(ledger.stats.counts),
        ledger.concurrency.limit,
        probabilities=probabilities,
    )


def update_without_values(
    ledger: AsyncLedger, task: Dispatch, *, samples: int = 1, loss: float = inf, balance: float = 1.0
) -> ClientUpdate:
    """Return an update without parameters for a task in flight, from which a rule can make its decisions.

    Args:
        ledger: The decisions so far.
        task: The task.
        samples: Number of the client's training samples.
        loss: Mean training loss of the task.
        balance: The client's factor of data against speed.
    """
    return ClientUpdate(
        client=task.client,
        fragment=ledger.index(task.fragment),
        where=slice(None),
        new=NO_VALUES,
        sent=NO_VALUES,
        staleness=ledger.weighed_staleness(task.task),
        samples=samples,
        loss=loss,
        balance=balance,
    )


def factor_at(staleness: int, factor: Any) -> float:
    """Return a StalenessWeight's factor. Raise InputError if it is not finite or is over `MAX_WEIGHT`."""
    with convert_errors("staleness", factor):
        weight = factor(staleness)
    if is_finite(weight) and abs(weight) <= MAX_WEIGHT:
        return float(weight)
    raise InputError(
        "staleness",
        f"{getattr(factor, '__name__', factor)} returned a wrong weight for an update of staleness {staleness}",
        got=weight,
        expected=f"a finite number of at most {MAX_WEIGHT:g} in size",
    )
