"""The asynchronous server: fragments with versions of their own, updates taken in one at a time."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import ClassVar, Protocol

import numpy as np

from fedraa.checkpoint import State
from fedraa.messages import Index, Task, Update, Vector
from fedraa.server.ledger import Ledger
from fedraa.server.staleness import STALENESS
from fedraa.streams import generator
from fedraa.submodels.policies import Choice, Part
from schedulers import Scheduler, delay_bound


class Rule(Protocol):
    """What becomes of an arrival; returns its weight and whether the model is a new version now."""

    def take(self, params: Vector, where: Index | slice, new: Vector, sent: Vector, stale: int) -> tuple[float, bool]:
        """`params` [d] changes in place on the coordinates `where`; `new` and `sent` [k] are what came and went."""

    def state(self) -> State: ...

    def restore(self, state: State) -> None: ...


@dataclass(frozen=True)
class StalenessMix:
    """theta <- (1 - a) theta + a theta_new with a = mixing * s(staleness) (FedAsync, Fed-RAA)."""

    mixing: float = 0.6
    staleness: str = "constant"

    def bind(self, size: int) -> Rule:
        return self

    def take(self, params: Vector, where: Index | slice, new: Vector, sent: Vector, stale: int) -> tuple[float, bool]:
        mix = self.mixing * STALENESS[self.staleness](stale)
        params[where] = np.float32(1 - mix) * params[where] + np.float32(mix) * new
        return mix, True

    def state(self) -> State:
        return {}

    def restore(self, state: State) -> None:
        """The mix keeps nothing."""


@dataclass(frozen=True)
class Buffer:
    """FedBuff (Nguyen et al. 2022): theta <- theta + server_lr / K * sum of s(staleness) * gain, every K arrivals.

    The version and the step count flushes; what is in the buffer when the run ends is dropped.
    """

    size: int = 10
    staleness: str = "polynomial"
    server_lr: float = 1.0

    keeps: ClassVar[str] = "buffer [d]"

    def bind(self, size: int) -> Rule:
        return _Buffered(self, np.zeros(size, np.float32))


@dataclass
class _Buffered:
    rule: Buffer
    total: Vector
    count: int = 0

    def take(self, params: Vector, where: Index | slice, new: Vector, sent: Vector, stale: int) -> tuple[float, bool]:
        weight = STALENESS[self.rule.staleness](stale)
        self.total[where] += np.float32(weight) * (new - sent)
        self.count += 1
        full = self.count == self.rule.size
        if full:
            params += np.float32(self.rule.server_lr / self.rule.size) * self.total
            self.total.fill(0)
            self.count = 0
        return weight * self.rule.server_lr / self.rule.size, full

    def state(self) -> State:
        return {"total": self.total, "count": self.count}

    def restore(self, state: State) -> None:
        self.total[:], self.count = state["total"], state["count"]


class AsyncServer:
    """Fed-RAA's updater (Algorithm 1, Progress Server) and scheduler in one state machine.

    On every arrival of a fragment j: q(j) += 1, theta_j <- (1 - alpha_t) theta_j + alpha_t theta_new with
    alpha_t = alpha * s(q(j) at arrival - q(j) at dispatch). Both ends of the staleness are on the fragment's
    own clock; the paper's literal t - tau mixes two. Parameters in no width group are part of every fragment
    and mixed with the same alpha_t; they have a version of their own. FedAsync is one fragment.

    `bound` is the delay bound; without one it is planned from the costs. With `learn`, costs follow real
    durations and a planned bound follows them.
    """

    def __init__(
        self,
        params: Vector,
        fragments: Sequence[Part],
        rule: Rule,
        scheduler: type[Scheduler],
        ledger: Ledger,
        *,
        bound: float | None,
        seed: int,
        learn: bool = False,
    ) -> None:
        self.params = params
        self.step = 0
        self.versions = np.zeros(len(fragments), np.int64)
        self.shared_version = 0
        self.ledger = ledger
        self._choices = [Choice(j, part) for j, part in enumerate(fragments)]
        self._rule, self._seed, self._learn = rule, seed, learn
        self._make_scheduler, self._bound = scheduler, bound
        self._snapshots: dict[int, tuple[int, Vector]] = {}
        self._plan()

    def begin(self) -> Iterable[int]:
        return range(len(self.ledger.turns))

    def assign(self, client: int, now: float) -> Task:
        turn = int(self.ledger.turns[client])
        rng = generator(self._seed, "schedule", client, turn)
        j = self._scheduler.choose(client, turn, self.versions, rng)
        return self.ledger.dispatch(
            client,
            now,
            self._choices[j],
            self._snapshot(j),
            version=int(self.versions[j]),
            step=self.step,
            feasible=self._scheduler.feasible(client).tolist(),
            counts=self.versions.tolist(),
        )

    def commit(self, update: Update, now: float) -> Iterable[int]:
        flight = self.ledger.in_flight[update.task]
        task, j = flight.task, flight.task.fragment
        staleness = int(self.versions[j]) - task.version
        global_staleness = self.step - task.step
        mix, advanced = self._rule.take(self.params, flight.choice.where, update.params, task.params, staleness)
        if advanced:
            self.versions[j] += 1
            self.shared_version += 1
            self.step += 1
        self.ledger.settle(
            update,
            now,
            version=int(self.versions[j]),
            staleness=staleness,
            global_staleness=global_staleness,
            mix=mix,
        )
        if self._learn and self.ledger.costs.observe(task.widths, task.client, now - flight.left):
            self._plan()
        return (task.client,)

    def state(self) -> State:
        return {
            "params": self.params,
            "step": self.step,
            "versions": self.versions,
            "shared_version": self.shared_version,
            "rule": self._rule.state(),
            "ledger": self.ledger.state(),
            "costs": self.ledger.costs.state(),
        }

    def restore(self, state: State) -> None:
        self.params[:], self.step = state["params"], state["step"]
        self.versions[:], self.shared_version = state["versions"], state["shared_version"]
        self._rule.restore(state["rule"])
        self.ledger.restore(state["ledger"])
        self.ledger.costs.restore(state["costs"])
        self._snapshots = {}
        self._plan()

    def _snapshot(self, j: int) -> Vector:
        """The fragment as it stands: one array, and so one transfer, per version however many pull it."""
        version, snapshot = self._snapshots.get(j, (-1, self.params))
        if version != self.shared_version:
            snapshot = self._choices[j].part.take(self.params)
            self._snapshots[j] = (self.shared_version, snapshot)
        return snapshot

    def _plan(self) -> None:
        table = self.ledger.costs.table([choice.part.widths for choice in self._choices])
        bound = delay_bound(table) if self._bound is None else self._bound
        self._scheduler = self._make_scheduler(table, bound)
