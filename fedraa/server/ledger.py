"""The book of tasks: what was sent to whom, what is still out. Both servers keep one."""

from dataclasses import dataclass
from typing import Protocol

import numpy as np

from fedraa.costs import CostModel
from fedraa.messages import Index, Task, Update, Vector


class Record(Protocol):
    """Where events go: `record(kind, t, **fields)`."""

    def __call__(self, kind: str, t: float, /, **fields: object) -> None: ...


@dataclass(frozen=True, eq=False)
class Part:
    """A part of the model: its shape and where its buffer lies in the full vector (None: all of it)."""

    widths: tuple[int, ...]
    index: Index | None

    def take(self, params: Vector) -> Vector:
        """A copy of the part's coordinates [k] of a full vector [d]."""
        return params.copy() if self.index is None else params[self.index]


@dataclass(frozen=True, eq=False)
class Flight:
    """A task on its way, the part that it was cut from and when it left."""

    task: Task
    part: Part
    left: float


class Ledger:
    """Numbers tasks, records `dispatch` and `commit`, and knows what is in flight."""

    def __init__(self, sizes: list[int], costs: CostModel, record: Record, *, lr: float) -> None:
        self.turns = np.zeros(len(sizes), np.int64)
        self.in_flight: dict[int, Flight] = {}
        self.sizes, self.costs = sizes, costs
        self._record, self._lr = record, lr
        self._next = 0

    def dispatch(
        self,
        client: int,
        now: float,
        part: Part,
        params: Vector,
        *,
        fragment: int,
        version: int,
        step: int,
        cost: float,
        feasible: list[int],
        counts: list[int],
    ) -> Task:
        """The client's next task: `params` [k], the part as it stands, and the decision's audit trail."""
        task = Task(
            id=self._next,
            client=client,
            turn=int(self.turns[client]),
            fragment=fragment,
            version=version,
            step=step,
            widths=part.widths,
            params=params,
            lr=self._lr,
            cost=cost,
        )
        self._record(
            "dispatch",
            now,
            task=task.id,
            client=client,
            fragment=fragment,
            version=version,
            step=step,
            cost=cost,
            feasible=feasible,
            counts=counts,
            bytes_down=params.nbytes,
        )
        self._next += 1
        self.turns[client] += 1
        self.in_flight[task.id] = Flight(task, part, now)
        return task

    def settle(
        self, update: Update, now: float, *, version: int, staleness: int, global_staleness: int, mix: float
    ) -> None:
        """The task is answered and its update is in the model as `version`."""
        task = self.in_flight.pop(update.task).task
        self._record(
            "commit",
            now,
            task=task.id,
            client=task.client,
            fragment=task.fragment,
            base_version=task.version,
            version=version,
            staleness=staleness,
            global_staleness=global_staleness,
            mix=mix,
            bytes_up=update.params.nbytes,
            samples=self.sizes[task.client],
            flops=self.costs.flops(task.widths, task.client),
            train_loss=update.loss,
        )
