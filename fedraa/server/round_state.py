"""State that rides along with rounds: what tasks carry besides the model, and what their returns change.

All of it lives at the server, keyed by the client's id, so that it survives any placement of work. Buffers
that the protocol would move between client and server are billed (`extra_buffers`).
"""

from collections.abc import Mapping
from copy import deepcopy
from dataclasses import dataclass, replace
from functools import partial
from types import MappingProxyType
from typing import ClassVar, Self

import numpy as np

from fedraa.aggregation.aggregator import Contribution, RoundTotals
from fedraa.aggregation.coverage_mean import Covered
from fedraa.messages import Extra, ExtraBuffers, Index, MadeBuffer, SharedBuffer, State, Update, Vector
from fedraa.submodels.assignment import Assignment, Mask
from fedraa.vectors.chunked import accumulate, all_or, cut, over, scratch
from fedraa.vectors.client_rows import ClientRows
from fedraa.vectors.coverage_counter import Tally
from fedraa.vectors.delta_view import Change
from fedraa.vectors.index_runs import Where, where_of

PLAIN_SGD = "the control variate takes a delta over lr * steps for a mean gradient, as it is in plain SGD alone"


@dataclass(frozen=True)
class AuxiliaryRun:
    """The run that it rides along with: parameters, clients, numbers in one sample, weight of the fresh gradient."""

    size: int
    clients: int
    inputs: int
    fresh: float


@dataclass
class NoAuxiliary:
    """Nothing rides along; the others change what they need.

    `keeps` names what is held at the server. `refuses` says why a local setting would break the mathematics. With
    `momentum` the server has one that clients may blend in, and `corrects` tells whether deltas are corrected by what
    is remembered of each client. `asks` names the further buffers that clients' answers must have.
    """

    keeps: ClassVar[str] = ""
    refuses: ClassVar[Mapping[str, str]] = MappingProxyType({})
    momentum: ClassVar[bool] = False
    corrects: ClassVar[bool] = False
    extra_buffers: ClassVar[ExtraBuffers] = ExtraBuffers()
    asks: ClassVar[tuple[str, ...]] = ()

    def bind(self, run: AuxiliaryRun) -> Self:
        own = deepcopy(self)
        own.start(run)
        return own

    def start(self, run: AuxiliaryRun) -> None:
        """Makes room for what is kept."""

    def send(self, client: int, assignment: Assignment) -> Mapping[str, Extra]:
        """Further buffers for the client's task."""
        return {}

    def receive(self, contribution: Contribution, assignment: Assignment, update: Update) -> None:
        """Takes in what came back."""

    def close(self, params: Vector, delta: Vector, moved: Mask, scale: float) -> None:
        """The round is over: `delta` [d] is its mean, `scale` the learning rate times the mean local steps."""

    def memory(self, size: int, clients: int, inputs: int) -> int:
        """Server bytes."""
        return 0

    def state(self) -> State:
        return {}

    def restore(self, state: State) -> None:
        """Takes back what `state` gave."""


@dataclass
class ControlVariates(NoAuxiliary):
    """SCAFFOLD (Karimireddy et al. 2020), option II, in full coordinates, on the covered ones.

    Clients step along g - c_i + c. c_i+ = c_i - c + (theta - y) / (T_i lr) with the client's own T_i;
    c += (1/N) sum (c_i+ - c_i). All start at 0.
    """

    keeps: ClassVar[str] = "c [d], c_n [N, d]"
    refuses: ClassVar[Mapping[str, str]] = MappingProxyType(
        {
            "momentum": PLAIN_SGD,
            "local_optimizer": PLAIN_SGD,
            "clip": PLAIN_SGD,
            "compress": "the control variate would take every entry that topk drops for a gradient of 0",
        }
    )
    corrects: ClassVar[bool] = True
    extra_buffers: ClassVar[ExtraBuffers] = ExtraBuffers(down=1, up=1)

    def start(self, run: AuxiliaryRun) -> None:
        self._server = np.zeros(run.size, np.float32)
        self._clients = run.clients
        self._client = ClientRows(run.size, run.clients, lambda: np.zeros(run.size, np.float32))
        self._change = np.zeros(run.size, np.float32)
        self._changed = False

    def send(self, client: int, assignment: Assignment) -> Mapping[str, Extra]:
        return {"control": MadeBuffer(partial(self._control, client, where_of(assignment.submodel)))}

    def _control(self, client: int, where: Where) -> Vector:
        """c - c_i on these coordinates: the same from when the client's task is made until its answer is there."""
        control = cut(self._server, where)
        if client in self._client:
            row = self._client.peek(client)
            accumulate(control, slice(None), -1.0, row if isinstance(where, slice) else cut(row, where))
        return control

    def receive(self, contribution: Contribution, assignment: Assignment, update: Update) -> None:
        row, scale = self._client[contribution.client], np.float32(update.steps * contribution.lr)
        self._changed = True

        def change(place: Index | slice, delta: Vector) -> None:
            by = np.negative(self._server[place], out=scratch("by", len(delta)))
            by -= np.divide(delta, scale, out=scratch("times", len(delta)))
            row[place] += by
            self._change[place] += by

        contribution.change.join(change)

    def close(self, params: Vector, delta: Vector, moved: Mask, scale: float) -> None:
        clients = np.float32(self._clients)

        def add(piece: slice) -> None:
            change = self._change[piece]
            self._server[piece] += np.divide(change, clients, out=change)
            change.fill(0)

        over(len(self._server), add)
        self._changed = False

    def memory(self, size: int, clients: int, inputs: int) -> int:
        return 4 * size * (clients + 2)

    def state(self) -> State:
        change = self._change if self._changed else 0.0
        return {"server": self._server, "client": self._client.state(), "change": change}

    def restore(self, state: State) -> None:
        self._server[:] = state["server"]
        self._client.restore(state["client"])
        self._change[:], self._changed = state["change"], True


@dataclass
class GlobalMomentum(NoAuxiliary):
    """FedCM, MoFedSAM: Delta <- -mean delta / (lr T), mixed into every local gradient of the next round."""

    keeps: ClassVar[str] = "Delta [d]"
    refuses: ClassVar[Mapping[str, str]] = MappingProxyType(
        {
            "momentum": "the server momentum is a delta over lr * steps, which it inflates anew every round",
            "local_optimizer": "the server momentum is a delta over lr * steps, a mean gradient only in SGD",
        }
    )
    momentum: ClassVar[bool] = True
    extra_buffers: ClassVar[ExtraBuffers] = ExtraBuffers(down=1)

    def start(self, run: AuxiliaryRun) -> None:
        self._momentum = np.zeros(run.size, np.float32)
        self._whole: SharedBuffer | None = None  # of this round, in which it stays as it is

    def send(self, client: int, assignment: Assignment) -> Mapping[str, Extra]:
        if assignment.submodel.index is not None:
            return {"momentum": cut(self._momentum, where_of(assignment.submodel))}
        if self._whole is None:
            whole = self._momentum[:]
            whole.flags.writeable = False
            self._whole = SharedBuffer(whole)
        return {"momentum": self._whole}

    def close(self, params: Vector, delta: Vector, moved: Mask, scale: float) -> None:
        self._whole = None
        np.divide(delta, np.float32(-scale), out=self._momentum, where=moved)

    def memory(self, size: int, clients: int, inputs: int) -> int:
        return 8 * size

    def state(self) -> State:
        return {"momentum": self._momentum}

    def restore(self, state: State) -> None:
        self._momentum[:], self._whole = state["momentum"], None


@dataclass
class FrozenMomentum(GlobalMomentum):
    """MimeLite: m <- (1 - beta) mean full-batch gradient at theta + beta m, frozen while clients train."""

    keeps: ClassVar[str] = "m [d]"
    refuses: ClassVar[Mapping[str, str]] = MappingProxyType(
        {
            "momentum": "clients step along the server's momentum, which a task leaves as it is",
            "local_optimizer": "clients step along the server's momentum, with no state of their optimizer",
        }
    )
    extra_buffers: ClassVar[ExtraBuffers] = ExtraBuffers(down=1, up=1)
    asks: ClassVar[tuple[str, ...]] = ("gradient",)

    def start(self, run: AuxiliaryRun) -> None:
        super().start(run)
        self._beta = np.float32(1 - run.fresh)
        self._gradient, self._coverage = Covered().bind(run.size, run.clients), Tally(run.size, np.int32)

    def receive(self, contribution: Contribution, assignment: Assignment, update: Update) -> None:
        gradient = Change(where_of(assignment.submodel), update.extras["gradient"], mask=assignment.mask)
        self._coverage.add(gradient)
        self._gradient.add(replace(contribution, change=gradient))

    def close(self, params: Vector, delta: Vector, moved: Mask, scale: float) -> None:
        self._whole = None
        mean, covered = self._gradient.finish(RoundTotals(self._coverage.finish(), 1.0))

        def blend(piece: slice) -> None:
            momentum = self._momentum[piece]
            fresh = (1 - self._beta) * mean[piece] + self._beta * momentum
            np.copyto(momentum, fresh, where=all_or(covered[piece]))

        over(len(mean), blend)

    def state(self) -> State:
        return super().state() | {"gradient": self._gradient.state(), "coverage": self._coverage.state()}

    def restore(self, state: State) -> None:
        super().restore(state)
        self._gradient.restore(state["gradient"])
        self._coverage.restore(state["coverage"])


@dataclass
class Adversaries(NoAuxiliary):
    """FedRobust: each client's own affine input perturbation (L, d), which never leaves the client."""

    keeps: ClassVar[str] = "Lambda_n, delta_n [N, 2 inputs]"
    asks: ClassVar[tuple[str, ...]] = ("adversary",)

    def start(self, run: AuxiliaryRun) -> None:
        identity = np.concatenate([np.ones(run.inputs, np.float32), np.zeros(run.inputs, np.float32)])
        self._client = ClientRows(2 * run.inputs, run.clients, lambda: identity)

    def send(self, client: int, assignment: Assignment) -> Mapping[str, Extra]:
        return {"adversary": self._client.peek(client).copy()}

    def receive(self, contribution: Contribution, assignment: Assignment, update: Update) -> None:
        self._client[contribution.client][:] = update.extras["adversary"]

    def memory(self, size: int, clients: int, inputs: int) -> int:
        return 8 * inputs * clients

    def state(self) -> State:
        return {"client": self._client.state()}

    def restore(self, state: State) -> None:
        self._client.restore(state["client"])


AUXILIARIES: Mapping[str, type[NoAuxiliary]] = MappingProxyType(
    {each.__name__: each for each in (NoAuxiliary, ControlVariates, GlobalMomentum, FrozenMomentum, Adversaries)}
)
