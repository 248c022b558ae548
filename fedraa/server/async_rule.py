"""The interface of an update rule of an asynchronous server, and the registry of rules.

The rules are in `fedraa/methods`, each in the file of its method.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from math import inf
from types import MappingProxyType
from typing import Any, ClassVar, Literal, NamedTuple, Self

import numpy as np
import numpy.typing as npt

from fedraa.components.calls import convert_errors, copy_component
from fedraa.components.registry import ComponentRegistry
from fedraa.components.state import Stateful
from fedraa.errors import InputError
from fedraa.ledger.async_ledger import AsyncLedger
from fedraa.ledger.dispatch import Dispatch
from fedraa.messages import Floats, Index, Shapes, Vector
from fedraa.numbers import NotNegative
from fedraa.vectors.delta_view import DeltaView
from fedraa.vectors.finite import is_finite
from fedraa.vectors.index_ranges import CoordinateSet, IndexRanges

# Largest absolute weight of an update. Usual weights are in [0, 1].
MAX_WEIGHT = 1e3
NO_VALUES = np.zeros(0, np.float32)

MixingFormula = Literal["blend", "add-delta"]


@dataclass(frozen=True, slots=True, eq=False)
class ClientUpdate:
    """A client update at an asynchronous server. Its arrays are read-only.

    Attributes:
        client: The client, from 0.
        fragment: The fragment that the client trained, from 0.
        where: Coordinates [k] of the fragment in the model, as indices or as a slice.
        new: Trained weights [k].
        sent: Weights [k] that the client received.
        staleness: Number of updates of the fragment since the client received it. If the schedule's `staleness_clock`
            is `server`, updates of all fragments count.
        samples: Number of the client's training samples.
        loss: Mean training loss of the task. It is infinite in runs with privacy, which does not protect losses.
        balance: The client's participation correction: a factor above 1 if it has many samples but reports rarely.
            It is 1 unless the rule's `participation_correction` is set.
        steps: Number of local steps that the client finished.
        path_length: Length of the client's path if each local gradient had length 1. For SGD, the sum of its learning
            rates.
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
    runs: IndexRanges | None = None

    @property
    def change(self) -> DeltaView:
        """A view that computes the delta in chunks. A chunk fits into the processor's cache."""
        return DeltaView(self.coordinates, self.new, self.sent)

    @property
    def delta(self) -> Vector:
        """Trained weights minus received weights [k]."""
        return self.new - self.sent

    @property
    def coordinates(self) -> CoordinateSet:
        """The coordinates of the fragment: `runs` if it is not None, because it is faster; otherwise `where`."""
        return self.where if self.runs is None else self.runs


@dataclass(frozen=True, eq=False)
class AsyncModel:
    """The global model as an asynchronous rule sees it.

    Attributes:
        params: Parameters [d]. The rule changes them in place.
        clients: Number of clients.
        fragments: Number of fragments.
        at_a_time: Number of clients that train at the same time; None for all.
        common: The coordinates to which a rule's `shared_weight` applies. For each fragment: their positions in the
            fragment's buffer. All fragments contain these coordinates.
        tensors: The shape of each tensor of the model, in the order of `params`; empty if unknown.
        probabilities: The probability with which the server draws each client [N]; None if unknown.
        sent: Number of coordinates that clients send; None for all. Personal layers are not sent.
        label_overlap: Mean overlap of a client's label frequencies with those of all clients (`measure_label_overlap`);
            1 if unknown.
        release_noise: A function that returns the noise [d] of central privacy for a full buffer, and the mask [d] of
            the coordinates with noise. None without such noise.
    """

    params: Vector
    clients: int
    fragments: int
    at_a_time: int | None = None
    common: tuple[Index, ...] = ()
    tensors: Shapes = ()
    probabilities: Floats | None = None
    sent: int | None = None
    label_overlap: float = 1.0
    release_noise: Callable[[], tuple[Vector, npt.NDArray[np.bool_]]] | None = None

    @property
    def at_work(self) -> int:
        """Number of clients that train at the same time."""
        return min(self.clients, self.at_a_time or self.clients)


class ApplyResult(NamedTuple):
    """The result of applying a client update.

    Attributes:
        weight: Weight of the update in the log; 0 if the update was ignored.
        new_version: True if the rule changed the model.
        keep_task: True if the client trains again from the weights of this task, so that the server sends nothing.
        unprotected: Number of coordinates of a new version that a robust aggregator could not protect, because too few
            clients trained them.
    """

    weight: float
    new_version: bool = True
    keep_task: bool = False
    unprotected: int = 0


class AsyncRule(Stateful, ABC):
    """The rule by which an asynchronous server applies one update at a time.

    A custom rule defines `apply_update`, and `start` if it keeps state:

        class LessOfLaterClients(AsyncRule):
            def apply_update(self, update, model):
                weight = 0.6 / (1 + update.client)
                model.params[update.where] += np.float32(weight) * update.delta
                return ApplyResult(weight)

    A run works on its own copy of the rule.

    Attributes:
        keeps: A description of the rule's state, for messages about memory.
        refuses: Settings of local training that are incompatible with the rule, each with the reason.
        per_step: Number of client updates per new version.
        mixing_formula: The formula of a rule that applies every update immediately and only by this formula, with
            a = `weight(staleness, balance)`. Server shards can apply it. `blend`: theta <- (1 - a) * theta + a * w.
            `add-delta`: theta <- theta + a * delta, with a * `shared_weight` for coordinates that are in all fragments.
            None: another formula.
        needs_values: True if weights depend on the trained values, which are not in the log.
        bounded_by_weight: True if an update changes the model by at most its weight times the trained values.
        needs_all_clients: True if the model cannot change while an update of one client is missing.
        adds_noise: True if the rule adds `model.release_noise` to each full buffer, and ignores no update. For other
            rules, central privacy adds noise to every single update.
        uses_samples: True if weights depend on numbers of samples or of local steps, which may exceed 1.
        uses_label_overlap: True if the rule reads `model.label_overlap`, which is measured only for such rules.
        uses_losses: True if weights depend on training losses, which privacy does not protect.
        participation_correction: Exponent of the participation correction (`balance`) in the weights; 0 turns it off.
    """

    keeps: ClassVar[str] = ""
    refuses: ClassVar[Mapping[str, str]] = MappingProxyType({})
    mixing_formula: ClassVar[MixingFormula | None] = None
    needs_values: ClassVar[bool] = False
    bounded_by_weight: ClassVar[bool] = False
    needs_all_clients: ClassVar[bool] = False
    adds_noise: ClassVar[bool] = False
    uses_samples: ClassVar[bool] = False
    uses_label_overlap: ClassVar[bool] = False
    participation_correction: NotNegative = 0.0
    shared_weight: float = 1.0
    asynchronous: ClassVar[bool] = True

    def __init_subclass__(cls) -> None:
        """Check that a subclass with its own `apply_update` repeats each guarantee of its base class.

        Raises TypeError if the subclass inherits a guarantee, such as `mixing_formula`, that its `apply_update` may
        break.
        """
        if "apply_update" not in vars(cls):
            return
        guarantees = ("mixing_formula", "bounded_by_weight", "adds_noise")
        inherited = [name for name in guarantees if getattr(cls, name) and name not in vars(cls)]
        if inherited:
            names = " and ".join(inherited)
            raise TypeError(
                f"{cls.__name__} overrides `apply_update` and inherits {names}; set {names} in {cls.__name__}"
            )

    @property
    def per_step(self) -> int:
        return 1

    @property
    def uses_losses(self) -> bool:
        return False

    def bind(self, model: AsyncModel) -> Self:
        own = copy_component("async_rule", self)
        with convert_errors("async_rule", own):
            own.start(model)
        return own

    def start(self, model: AsyncModel) -> None:
        """Allocate the rule's state."""

    @abstractmethod
    def apply_update(self, update: ClientUpdate, model: AsyncModel) -> ApplyResult:
        """Change `model.params` in place by one update, usually on the coordinates `update.where`."""

    def look_ahead(self, values: Vector, where: CoordinateSet) -> None:
        """Change in place the values [k] that the server sends to a client. By default they stay unchanged.

        Args:
            values: The current values of the model on these coordinates.
            where: The coordinates in the model.
        """

    def leave(self, client: int) -> None:
        """Remove a client that gets no more tasks, so that the rule no longer waits for it.

        The client is quarantined, or it has had its maximum number of tasks.
        """

    def weight(self, staleness: int, balance: float = 1.0) -> float:
        """Return the weight of an update. Only rules with a `mixing_formula` define this method."""
        raise AssertionError(f"{type(self).__name__} has no mixing formula")

    def memory(self, size: int, clients: int) -> int:
        """Return the bytes of the rule's state. The memory check before a run uses this number."""
        return 0


ASYNC_RULE: ComponentRegistry[AsyncRule] = ComponentRegistry(
    "async_rule", ("bind", "apply_update", "state", "restore"), base="AsyncRule"
)


def model_without_values(ledger: AsyncLedger) -> AsyncModel:
    """Return a model that has no parameters. A forecast or a replay passes it to a rule."""
    probabilities = None if ledger.routing is None else ledger.routing.probabilities
    return AsyncModel(
        NO_VALUES,
        clients=ledger.clients,
        fragments=len(ledger.stats.counts),
        at_a_time=ledger.concurrency.limit,
        probabilities=probabilities,
    )


def update_without_values(
    ledger: AsyncLedger, task: Dispatch, *, samples: int = 1, loss: float = inf, balance: float = 1.0
) -> ClientUpdate:
    """Return an update that has no parameters, for a task in flight. A forecast or a replay passes it to a rule.

    Args:
        ledger: The decisions so far.
        task: The task.
        samples: Number of the client's training samples.
        loss: Mean training loss of the task.
        balance: The client's participation correction.
    """
    return ClientUpdate(
        client=task.client,
        fragment=ledger.index(task.fragment),
        where=slice(None),
        new=NO_VALUES,
        sent=NO_VALUES,
        staleness=ledger.staleness_for_weight(task.task),
        samples=samples,
        loss=loss,
        balance=balance,
    )


def factor_at(staleness: int, factor: Any) -> float:
    """Return `factor(staleness)`. Raise InputError if its absolute value exceeds `MAX_WEIGHT` or is not finite."""
    with convert_errors("staleness", factor):
        weight = factor(staleness)
    if is_finite(weight) and abs(weight) <= MAX_WEIGHT:
        return float(weight)
    raise InputError(
        "staleness",
        f"{getattr(factor, '__name__', factor)} returned a wrong weight for an update of staleness {staleness}",
        got=weight,
        expected=f"a number from -{MAX_WEIGHT:g} to {MAX_WEIGHT:g}",
    )
