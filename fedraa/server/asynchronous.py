"""The asynchronous server: fragments with versions of their own, mixed in one update at a time."""

from collections.abc import Iterable, Sequence

import numpy as np

from fedraa.messages import Task, Update, Vector
from fedraa.server.ledger import Ledger, Part
from fedraa.server.staleness import STALENESS
from fedraa.streams import generator
from schedulers import Scheduler, delay_bound


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
        scheduler: type[Scheduler],
        ledger: Ledger,
        *,
        mixing: float,
        staleness: str,
        bound: float | None,
        seed: int,
        learn: bool = False,
    ) -> None:
        self.params = params
        self.step = 0
        self.versions = np.zeros(len(fragments), np.int64)
        self.shared_version = 0
        self.ledger = ledger
        self._fragments = fragments
        self._mixing, self._seed, self._learn = mixing, seed, learn
        self._staleness = STALENESS[staleness]
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
            self._fragments[j],
            self._snapshot(j),
            fragment=j,
            version=int(self.versions[j]),
            step=self.step,
            cost=float(self._table[client, j]),
            feasible=self._scheduler.feasible(client).tolist(),
            counts=self.versions.tolist(),
        )

    def commit(self, update: Update, now: float) -> Iterable[int]:
        flight = self.ledger.in_flight[update.task]
        task, j = flight.task, flight.task.fragment
        staleness = int(self.versions[j]) - task.version
        mix = self._mixing * self._staleness(staleness)
        where = slice(None) if flight.part.index is None else flight.part.index
        self.params[where] = np.float32(1 - mix) * self.params[where] + np.float32(mix) * update.params
        self.versions[j] += 1
        self.shared_version += 1
        self.step += 1
        self.ledger.settle(
            update,
            now,
            version=int(self.versions[j]),
            staleness=staleness,
            global_staleness=self.step - 1 - task.step,
            mix=mix,
        )
        if self._learn:
            self.ledger.costs.observe(task.widths, task.client, now - flight.left)
            self._plan()
        return (task.client,)

    def _snapshot(self, j: int) -> Vector:
        """The fragment as it stands: one array, and so one transfer, per version however many pull it."""
        version, snapshot = self._snapshots.get(j, (-1, self.params))
        if version != self.shared_version:
            snapshot = self._fragments[j].take(self.params)
            self._snapshots[j] = (self.shared_version, snapshot)
        return snapshot

    def _plan(self) -> None:
        self._table = self.ledger.costs.table([fragment.widths for fragment in self._fragments])
        bound = delay_bound(self._table) if self._bound is None else self._bound
        self._scheduler = self._make_scheduler(self._table, bound)
