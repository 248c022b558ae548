"""The synchronous server: rounds with a barrier, alternate to the asynchronous one."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np
import numpy.typing as npt

from fedraa.messages import Task, Update, Vector
from fedraa.server.aggregate import CoverageMean
from fedraa.server.ledger import Ledger, Part, Record
from fedraa.streams import generator
from schedulers import Scheduler


class Draw(Protocol):
    """Which part of the model a client trains in a round."""

    def __call__(self, client: int, turn: int) -> tuple[int, Part]: ...

    def audit(self, client: int) -> tuple[list[int], list[int]]:
        """The choices that were feasible for the client and the updates per choice so far."""


@dataclass
class ScheduledDraw:
    """Sync Fed-RAA: the scheduler's fragment, with counts that rise as the round is assigned.

    Every task of a round returns before the next, so these provisional counts are the real ones by then.
    """

    fragments: Sequence[Part]
    scheduler: Scheduler
    seed: int
    counts: npt.NDArray[np.int64] = field(init=False)

    def __post_init__(self) -> None:
        self.counts = np.zeros(len(self.fragments), np.int64)

    def audit(self, client: int) -> tuple[list[int], list[int]]:
        return self.scheduler.feasible(client).tolist(), self.counts.tolist()

    def __call__(self, client: int, turn: int) -> tuple[int, Part]:
        j = self.scheduler.choose(client, turn, self.counts, generator(self.seed, "schedule", client, turn))
        self.counts[j] += 1
        return j, self.fragments[j]


class RoundServer:
    """Each round every client trains what `draw` gives it; then theta += server_lr * mean gain.

    The mean is per coordinate over the clients that cover it, weighted `uniform`ly or by `samples`. With
    full models and server_lr 1 this is FedAvg (McMahan et al. 2017, Algorithm 1); with fragments and
    server_lr = alpha it is Sync Fed-RAA: theta_j <- (1 - alpha) theta_j + alpha * mean of the returns.
    """

    def __init__(
        self,
        params: Vector,
        draw: Draw,
        ledger: Ledger,
        record: Record,
        *,
        server_lr: float,
        weights: str,
    ) -> None:
        self.params = params
        self.step = 0
        self.ledger = ledger
        self._draw, self._record = draw, record
        self._server_lr, self._by_samples = server_lr, weights == "samples"
        self._aggregate = CoverageMean(len(params))
        self._snapshots: dict[int, Vector] = {}
        self._cohort: Sequence[int] = ()
        self._missing = 0
        self._weight_sum = 0.0

    def begin(self) -> Iterable[int]:
        self._cohort = range(len(self.ledger.sizes))
        self._missing = len(self._cohort)
        self._weight_sum = sum(self._weight(client) for client in self._cohort)
        self._snapshots = {}
        return self._cohort

    def assign(self, client: int, now: float) -> Task:
        feasible, counts = self._draw.audit(client)
        j, part = self._draw(client, int(self.ledger.turns[client]))
        if j not in self._snapshots:
            self._snapshots[j] = part.take(self.params)
        return self.ledger.dispatch(
            client,
            now,
            part,
            self._snapshots[j],
            fragment=j,
            version=self.step,
            step=self.step,
            cost=self.ledger.costs.cost(part.widths, client),
            feasible=feasible,
            counts=counts,
        )

    def commit(self, update: Update, now: float) -> Iterable[int]:
        flight = self.ledger.in_flight[update.task]
        weight = self._weight(flight.task.client)
        self._aggregate.add(update.params - flight.task.params, weight, flight.part.index)
        self._missing -= 1
        self.ledger.settle(
            update,
            now,
            version=self.step + 1,
            staleness=0,
            global_staleness=0,
            mix=self._server_lr * weight / self._weight_sum,
        )
        if self._missing:
            return ()
        gain, coverage = self._aggregate.finish()
        self.params += np.float32(self._server_lr) * gain
        self._record(
            "round",
            now,
            round=self.step,
            clients=len(self._cohort),
            coverage_min=int(coverage.min()),
            coverage_max=int(coverage.max()),
            uncovered=int((coverage == 0).sum()),
        )
        self.step += 1
        return self.begin()

    def _weight(self, client: int) -> float:
        return float(self.ledger.sizes[client]) if self._by_samples else 1.0
