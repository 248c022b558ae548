"""The synchronous server: rounds with a barrier, alternate to the asynchronous one."""

from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import replace

import numpy as np
import torch

from fedraa.aggregation.aggregator import Contribution, RoundTotals
from fedraa.aggregation.checked_aggregator import BoundAggregator
from fedraa.client.compression import Compressor, NoCompression
from fedraa.components.calls import calling
from fedraa.components.state import saved
from fedraa.errors import short_text
from fedraa.ledger.participation import Participation, draw_cohort
from fedraa.messages import SharedBuffer, State, Task, Update, Vector
from fedraa.server.optimizers import ServerOptimizer
from fedraa.server.round_state import NoAuxiliary
from fedraa.server.tasks import Record, TaskTable
from fedraa.server.update_checks import refuse_unsound
from fedraa.submodels.assignment import Assignment, Mask, Submodel
from fedraa.submodels.policies.policy import RoundContext, RunContext, SubmodelSampler
from fedraa.vectors.chunked import cut
from fedraa.vectors.coverage_counter import Tally
from fedraa.vectors.delta_view import Change
from fedraa.vectors.index_runs import where_of
from fedraa.vectors.last_trained import LastTrained
from fedraa.vectors.run_length import spread


class RoundServer:
    """Each round a cohort trains what `sampler` gives it; then theta steps along the mean delta.

    With full models, the mean weighted by samples and a step of 1 this is FedAvg (McMahan et al. 2017,
    Algorithm 1); every other synchronous method changes the sampler, the aggregator, the optimizer or the
    auxiliary state. `held` [clients, d], where given, tells which coordinates a client may report
    (HeteroFL's label-aware head).

    A client whose task came to nothing has not reported: the round is that of the others, and what is remembered of
    the client stays as it was. A round in which nobody has reported changes nothing. Who is left out is drawn no more.
    """

    def __init__(
        self,
        params: Vector,
        run: RunContext,
        sampler: SubmodelSampler,
        aggregator: BoundAggregator,
        optimizer: ServerOptimizer,
        auxiliary: NoAuxiliary,
        participation: Participation,
        task_table: TaskTable,
        record: Record,
        *,
        by_samples: bool,
        held: Callable[[int], Mask] | None = None,
        download: Compressor | None = None,
    ) -> None:
        self.params = params
        self.step = 0
        self.task_table = task_table
        self._run, self._sampler, self._aggregator, self._optimizer = run, sampler, aggregator, optimizer
        self._followers: Sequence[NoAuxiliary | SubmodelSampler] = (auxiliary, sampler)
        self._auxiliary, self._participation = auxiliary, participation
        self._record, self._held, self._by_samples = record, held, by_samples
        self._download = download or NoCompression()
        self._coverage = Tally(len(params), np.int32)
        self._last_trained = LastTrained(len(params))
        self._missing = self._reported = 0
        self._begin_round(())

    def begin(self) -> Iterable[int]:
        return self._cohort

    def assign(self, client: int, now: float) -> Task:
        feasible, counts = self._sampler.audit(client)
        place = RoundContext(client, self.step, self._position[client], len(self._cohort), now, self.params, self._run)
        assignment = self._sampler.draw(place)
        return self.task_table.dispatch(
            client,
            now,
            assignment,
            self._snapshot(assignment.submodel),
            version=self.step,
            step=self.step,
            feasible=feasible,
            counts=counts,
            extras=dict(self._auxiliary.send(client, assignment)),
            extra_buffers=[follower.extra_buffers for follower in self._followers],
            moves=self._aggregator.moves(client, assignment),
            asks=self._auxiliary.asks + self._sampler.asks,
        )

    def commit(self, update: Update, now: float) -> Iterable[int]:
        flight = self.task_table.in_flight[update.task]
        task, assignment = flight.task, flight.assignment
        if self._held is not None:
            assignment = _reported(assignment, self._held(task.client))
        weight = self._weight(task.client)
        change = Change(
            where_of(assignment.submodel), update.params, task.params, assignment.mask, norm=True, gather=True
        )
        lr = self.task_table.mean_lr(task, update.steps)
        contribution = Contribution(task.client, change, weight, lr)
        self._auxiliary.receive(contribution, assignment, update)
        self._sampler.receive(assignment, update, weight)
        self._aggregator.add(contribution)
        self._coverage.add(change)
        change.settle()
        self._missing -= 1
        self._scales += lr * update.steps
        self._square += change.squared
        self._lr = lr
        self.task_table.settle(
            update,
            now,
            version=self.step + 1,
            staleness=0,
            global_staleness=0,
            mix=self._optimizer.server_lr * weight / self._weight_sum,
        )
        return self._after(now)

    def drop(self, task: int, what: str, now: float) -> Iterable[int]:
        flight = self.task_table.in_flight[task]
        self._sampler.drop(flight.assignment)
        self.task_table.drop(task, what, now)
        self._missing -= 1
        self._reported -= 1
        return self._after(now)

    def state(self) -> State:
        return {
            "params": self.params,
            "step": self.step,
            "missing": self._missing,
            "reported": self._reported,
            "left_out": list(self._left_out),
            "scales": self._scales,
            "square": self._square,
            "lr": self._lr,
            "last_trained": self._last_trained.state(),
            "coverage": self._coverage.state(),
            "aggregate": self._aggregator.state(),
            "stepper": saved(self._optimizer),
            "companions": [saved(follower) for follower in self._followers],
            "ledger": self.task_table.state(),
        }

    def restore(self, state: State) -> None:
        self.params[:], self.step = state["params"], state["step"]
        self._begin_round(state.get("left_out", ()))  # which older checkpoints do not have
        if "reported" in state:
            self._reported = state["reported"]
        self._missing, self._scales = state["missing"], state["scales"]
        self._square, self._lr = state["square"], state["lr"]
        self._last_trained.restore(state["last_trained"])
        self._aggregator.restore(state["aggregate"])
        self._optimizer.restore(state["stepper"])
        self._coverage.restore(state["coverage"])
        for follower, ours in zip(self._followers, state["companions"], strict=True):
            follower.restore(ours)
        self.task_table.restore(state["ledger"])

    def _after(self, now: float) -> Iterable[int]:
        """What follows when a task has ended: the next round, if it was the last of this one and anyone is left."""
        if self._missing:
            return ()
        self._close_round(now)
        left_out = sorted(self.task_table.bad_clients.left_out)
        return self._begin_round(left_out) if len(left_out) < len(self.task_table.sizes) else ()

    def _begin_round(self, left_out: Collection[int]) -> Iterable[int]:
        clients, self._left_out = len(self.task_table.sizes), left_out
        alone = self._sampler.alone
        self._cohort = draw_cohort(self._participation, clients, self.step, self._run.seed, left_out, alone)
        self._position = {client: position for position, client in enumerate(self._cohort)}
        self._missing = self._reported = len(self._cohort)
        self._weight_sum = sum(self._weight(client) for client in self._cohort)
        self._scales = self._square = self._lr = 0.0
        self._snapshots: dict[Submodel | None, SharedBuffer] = {}  # None: of the whole model
        return self._cohort

    def _close_round(self, now: float) -> None:
        coverage, reported = self._coverage.finish(), self._reported
        if reported:
            self._move(RoundTotals(coverage, self._lr))
        self._last_trained.now(self.step, coverage)
        self._record(
            "round",
            now,
            round=self.step,
            clients=reported,
            **spread(coverage, reported),
            longest_untrained=self.step - self._last_trained.oldest,
            drift=(self._square / max(1, reported)) ** 0.5,
        )
        self.step += 1

    def _move(self, totals: RoundTotals) -> None:
        """The model moves by what was reported, and those who follow a run learn of it."""
        delta, moved = self._aggregator.finish(totals)
        with calling("server_optimizer", self._optimizer):
            self._optimizer.step(self.params, delta, moved)
        refuse_unsound("server_optimizer", self._optimizer, self.params)
        for follower in self._followers:
            follower.close(self.params, delta, moved, self._scales / self._reported)

    def _snapshot(self, submodel: Submodel) -> SharedBuffer:
        """The submodel at the start of the round: one buffer for all clients that train it.

        The whole model is not copied: it stays as it is until all have trained. It is as it arrives at the clients.
        """
        key = None if submodel.index is None else submodel
        if key not in self._snapshots:
            whole = self.params[:]
            whole.flags.writeable = False
            part = whole if submodel.index is None else cut(whole, where_of(submodel))
            self._snapshots[key] = SharedBuffer(part if self._download.lossless else arriving(self._download, part))
        return self._snapshots[key]

    def _weight(self, client: int) -> float:
        return float(self.task_table.sizes[client]) if self._by_samples else 1.0


def arriving(download: Compressor, part: Vector) -> Vector:
    """What a client has of a buffer [k] that is sent compressed; ValueError if an own compressor gives another."""
    with calling("compress_down", download):
        arrived = download.apply(torch.tensor(part))
        if not isinstance(arrived, torch.Tensor) or arrived.shape != part.shape:
            what = list(arrived.shape) if isinstance(arrived, torch.Tensor) else short_text(arrived)
            raise ValueError(f"compress_down: {type(download).__name__} gave {what}; takes a tensor {list(part.shape)}")
    return np.asarray(arrived.numpy(), np.float32)


def _reported(assignment: Assignment, held: Mask) -> Assignment:
    """The choice less the coordinates that the client may not report; `held` is over the full vector."""
    mask = held if assignment.submodel.index is None else cut(held, where_of(assignment.submodel))
    if mask.all():
        return assignment
    return replace(assignment, mask=mask if assignment.mask is None else assignment.mask & mask)
