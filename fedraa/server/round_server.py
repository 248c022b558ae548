"""The synchronous server: in each round a cohort of clients trains, and then the model moves once."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from math import inf
from typing import ClassVar

import numpy as np
import torch

from fedraa.aggregation.aggregator import ClientDelta, RoundTotals
from fedraa.aggregation.checked_aggregator import BoundAggregator
from fedraa.client.compression import Compressor
from fedraa.components.calls import change_in_place, convert_errors
from fedraa.components.state import Stateful
from fedraa.components.text import is_built_in
from fedraa.errors import InputError
from fedraa.ledger.dispatch import Committed, Dropped
from fedraa.ledger.round_ledger import RoundLedger
from fedraa.messages import Mask, SharedBuffer, State, Task, Update, Vector
from fedraa.rng import generator
from fedraa.server.optimizers import ServerOptimizer
from fedraa.server.partial_work import Deadline, RoundEnd
from fedraa.server.round_state import RoundState
from fedraa.server.tasks import Record, TaskTable
from fedraa.server.update_checks import refuse_unsound
from fedraa.submodels.assignment import Assignment, Submodel
from fedraa.submodels.policies.policy import RoundContext, RunContext, SubmodelSampler
from fedraa.vectors.chunked import copy_coordinates
from fedraa.vectors.coverage_counter import CoverageCounter
from fedraa.vectors.delta_view import DeltaView
from fedraa.vectors.index_ranges import where_of
from fedraa.vectors.last_trained import LastTrained
from fedraa.vectors.run_length import summarise_coverage


@dataclass(frozen=True, eq=False)
class RoundComponents:
    """The components of a synchronous method in one run.

    Attributes:
        submodels: The sampler that draws a submodel for every task, or the fragments from which a scheduler chooses.
        aggregator: The component that computes the mean delta of a round.
        optimizer: The component that takes the server's step.
        auxiliary: State besides the model, such as control variates.
        reportable: A function of the client that returns the mask [d] of the coordinates that count in the mean. In
            HeteroFL it excludes output rows of labels that the client lacks. None: all coordinates.
        download: Compresses the model that is sent to the clients.
        shared: Mask [d] of the coordinates that clients send; None for all.
        deadline: The deadline of the rounds; None without a deadline.
    """

    submodels: SubmodelSampler | Sequence[Submodel]
    aggregator: BoundAggregator
    optimizer: ServerOptimizer
    auxiliary: RoundState
    reportable: Callable[[int], Mask] | None
    download: Compressor
    shared: Mask | None = None
    deadline: Deadline | None = None


class RoundServer(Stateful):
    """A server in rounds: the clients of a cohort train their submodels, then the model moves by the mean delta.

    With full models, a mean weighted by samples and a step of 1 this is FedAvg (McMahan et al. 2017, Algorithm 1). A
    failed task contributes nothing to its round. A round without updates changes nothing.

    Args:
        params: The model [d].
        run: The run.
        ledger: Decides the cohorts and the fragments.
        components: The components of the method.
        task_table: The tasks.
        record: Writes an event to the log.
    """

    state_fields: ClassVar[tuple[str, ...]] = (
        "params",
        "ledger",
        "task_table",
        "_lr_steps",
        "_square",
        "_first_lr",
        "_lr_above",
        "_last_trained",
        "_coverage",
        "_trained",
        "_aggregator",
        "_optimizer",
        "_followers",
    )

    def __init__(
        self,
        params: Vector,
        run: RunContext,
        ledger: RoundLedger,
        components: RoundComponents,
        task_table: TaskTable,
        record: Record,
    ) -> None:
        self.params = params
        self.ledger = ledger
        self.task_table = task_table
        self._run = run
        self._fragments: list[Assignment] = []
        # If the method has a scheduler instead of a sampler, this default sampler stays. It does nothing when a round
        # ends.
        self._sampler = SubmodelSampler()
        if isinstance(components.submodels, SubmodelSampler):
            self._sampler = components.submodels
        else:
            self._fragments = [Assignment(j, submodel) for j, submodel in enumerate(components.submodels)]
        self._aggregator = components.aggregator
        self._optimizer = components.optimizer
        self._auxiliary = components.auxiliary
        self._followers: Sequence[RoundState | SubmodelSampler] = (self._auxiliary, self._sampler)
        self._record = record
        self._reportable = components.reportable
        self._download = components.download
        self._shared = components.shared
        self._deadline = components.deadline
        self._paces = None if self._deadline is None else self._deadline.paces
        self._coverage = CoverageCounter(len(params), np.int32)
        # Unlike `_coverage`, this counter includes personal layers, which clients train but do not send.
        self._trained = CoverageCounter(len(params), np.int32)
        self._last_trained = LastTrained(len(params))
        self._reset_round()

    @property
    def step(self) -> int:
        return self.ledger.step

    @property
    def closes_at(self) -> float:
        return inf if self._end is None else self._end.closes_at

    def begin(self) -> Iterable[int]:
        return self.ledger.cohort

    def assign(self, client: int, now: float) -> Task:
        if self._fragments:
            decision = self.ledger.assign(client, now)
            assignment = self._fragments[decision.fragment]
        else:
            context = RoundContext(
                client=client,
                round=self.step,
                position=self.ledger.position[client],
                cohort=len(self.ledger.cohort),
                now=now,
                params=self.params,
                run=self._run,
            )
            assignment = self._sampler.draw(context)
            decision = self.ledger.assign(client, now, fragment=assignment.label)
        with convert_errors("auxiliary", self._auxiliary):
            extras = dict(self._auxiliary.send(client, assignment))
        self.task_table.round_end = self._end
        return self.task_table.dispatch(
            decision,
            now,
            assignment,
            self._cut_snapshot(assignment.submodel),
            extras=extras,
            extra_buffers=[follower.extra_buffers for follower in self._followers],
            traffic_sizes=self._aggregator.traffic_sizes(client, assignment),
            asks=self._auxiliary.asks + self._sampler.asks,
        )

    def commit(self, update: Update, now: float) -> Iterable[int]:
        """Add a client's delta to the sums of the round. After the last delta, move the model.

        The logged weight is the server learning rate times (weight of the client) / (sum of the weights of the cohort).
        The sum includes clients that fail later.
        """
        flight = self.task_table.in_flight[update.task]
        task = flight.task
        assignment = flight.assignment
        if self._reportable is not None:
            assignment = assignment.restrict(self._reportable(task.client))
        if self._shared is not None:
            where = where_of(assignment.submodel)
            self._trained.add(DeltaView(where, update.params, task.params, assignment.mask))
            assignment = assignment.restrict(self._shared)
        if self._paces is not None:
            self._paces.record_update(task.client, self.task_table.count_flops(flight), now - flight.left)
        weight = self.ledger.weight(task.client)
        change = DeltaView(
            where_of(assignment.submodel), update.params, task.params, assignment.mask, norm=True, gather=True
        )
        lr = self.task_table.mean_lr(task, update.steps)
        fragment = assignment.label if self._fragments else None
        contribution = ClientDelta(
            task.client,
            change,
            weight,
            lr,
            steps=update.steps,
            fragment=fragment,
            path_length=self.task_table.path_length(task, update.steps),
        )
        # These calls do not compute the delta yet. They register functions of it. `run_joined` then computes the delta
        # once and passes it, chunk by chunk, to all of these functions.
        with convert_errors("auxiliary", self._auxiliary):
            self._auxiliary.receive(contribution, assignment, update)
        with convert_errors("submodel", self._sampler):
            self._sampler.receive(assignment, update, weight)
        self._aggregator.add(contribution)
        self._coverage.add(change)
        change.run_joined()
        self._lr_steps += lr * update.steps
        self._square += change.squared
        # Equal rates have exactly this mean, because only differences are averaged.
        if not self.ledger.reported:
            self._first_lr = lr
        self._lr_above += lr - self._first_lr
        done = self.ledger.commit(task.id, size_class=task.size_class, loss=update.loss, duration=now - flight.left)
        self.task_table.commit(update, done, self._optimizer.server_lr * weight / self.ledger.weight_sum, now)
        return self._end_round_if_complete(done, now)

    def drop(self, task: int, error: str, now: float) -> Iterable[int]:
        dropped = self.ledger.drop(task)
        self.task_table.drop(dropped, error, now)
        return self._end_round_if_complete(dropped, now)

    def close_round(self, now: float) -> Iterable[int]:
        return self._end_round("deadline", now)

    def skip_round(self, now: float) -> Iterable[int]:
        """End the round as if all updates had arrived, without a change of the model. Return the next cohort.

        A plan of a run draws the tasks of several rounds in this way. The state of a custom sampler does not change,
        because its `close` may need updates.
        """
        for number in list(self.ledger.in_flight):
            flight = self.task_table.in_flight.pop(number)
            self.ledger.commit(number, size_class=flight.task.size_class, loss=1.0, duration=now - flight.left)
        if is_built_in(self._sampler):
            unmoved = np.zeros_like(self.params)
            self._sampler.close(self.params, unmoved, unmoved != 0, 0.0)
        self.ledger.close_round()
        self._reset_round()
        return self.ledger.begin_round(now)

    def state(self) -> State:
        state = super().state() | {"in_flight": self.task_table.in_flight_state()}
        if self._paces is not None:
            state["paces"] = self._paces.state()
        return state

    def restore(self, state: State) -> None:
        self._reset_round()
        super().restore(state)
        if self._paces is not None:
            self._paces.restore(state["paces"])
        self.task_table.restore_in_flight(state["in_flight"], self.ledger.in_flight.values())

    @property
    def _end(self) -> RoundEnd | None:
        return None if self._deadline is None else self._deadline.end_of(self.ledger.started)

    def _end_round_if_complete(self, ended: Committed | Dropped, now: float) -> Iterable[int]:
        """If no more tasks are expected, end the round and return the next cohort. Otherwise return no clients."""
        if not ended.round_complete:
            return ()
        return self._end_round("count", now)

    def _end_round(self, reason: str, now: float) -> Iterable[int]:
        """Record the tasks in flight as lost, with `reason`. Then close the round, and return the next cohort."""
        for number in list(self.ledger.in_flight):
            flight = self.task_table.in_flight[number]
            elapsed = now - flight.left
            # A round that ended with enough updates does not show how long this task would have taken.
            if self._paces is not None and reason == "deadline":
                self._paces.record_lost(flight.task.client, self.task_table.count_flops(flight), elapsed)
            self.ledger.lose(number, elapsed)
            self.task_table.lose(number, reason, now)
        self._apply_round(now)
        self.ledger.close_round()
        self._reset_round()
        return self.ledger.begin_round(now)

    def _reset_round(self) -> None:
        """Clear the sums of a round, and the snapshots of the model that its clients received."""
        # Sum of (learning rate * local steps) over the clients that have reported.
        self._lr_steps: float = 0.0
        # Sum of the squared norms of the deltas.
        self._square: float = 0.0
        # The mean learning rate of the first task that reported, and the sum of how much the others are above it.
        self._first_lr = 0.0
        self._lr_above = 0.0
        # Snapshots of the model at the start of the round, by submodel. The key None is the whole model.
        self._snapshots: dict[Submodel | None, SharedBuffer] = {}

    def _apply_round(self, now: float) -> None:
        coverage = self._coverage.finish()
        reported = self.ledger.reported
        protection = {}
        if reported or not self._aggregator.needs_reports:
            mean_lr = self._first_lr + self._lr_above / max(1, reported)
            self._move_model(RoundTotals(coverage, mean_lr))
            if self._aggregator.unprotected is not None:
                protection["unprotected"] = self._aggregator.unprotected
        trained = coverage if self._shared is None else self._trained.finish()
        self._last_trained.now(self.step, trained)
        self._record(
            "round",
            now,
            round=self.step,
            clients=reported,
            **summarise_coverage(trained, reported),
            longest_untrained=self.step - self._last_trained.oldest,
            drift=(self._square / max(1, reported)) ** 0.5,
            **protection,
        )

    def _move_model(self, totals: RoundTotals) -> None:
        """Move the model by the round's mean delta. Then call `close` of the auxiliary state and the sampler.

        They keep their state in a round without updates, in which only the noise of central privacy moves the model.
        """
        delta, moved = self._aggregator.finish(totals)
        change_in_place("server_optimizer", self._optimizer, "step", self.params, delta, moved, name="params")
        refuse_unsound("server_optimizer", self._optimizer, self.params)
        if not self.ledger.reported:
            return
        scale = self._lr_steps / self.ledger.reported
        for field, follower in zip(("auxiliary", "submodel"), self._followers, strict=True):
            if type(follower).close in (RoundState.close, SubmodelSampler.close):
                continue
            with convert_errors(field, follower):
                follower.close(self.params, delta, moved, scale)
            refuse_unsound(field, follower, self.params)

    def _cut_snapshot(self, submodel: Submodel) -> SharedBuffer:
        """Return the submodel's parameters at the start of the round. All clients with this submodel share them."""
        whole = submodel.index is None
        key = None if whole else submodel
        if key not in self._snapshots:
            values = self.params[:]
            values.flags.writeable = False
            if not whole:
                values = copy_coordinates(values, where_of(submodel))
            if not self._download.lossless:
                rng = generator(self._run.seed, "download", self.step)
                values = received_buffer(self._download, values, rng)
            self._snapshots[key] = SharedBuffer(values)
        return self._snapshots[key]


def received_buffer(download: Compressor, part: Vector, rng: np.random.Generator) -> Vector:
    """Return the buffer [k] that a client receives after compression.

    Args:
        download: The compressor.
        part: The sent buffer [k].
        rng: The random generator of the compressor.

    Raises:
        InputError: A custom compressor returned anything but a tensor [k].
    """
    with convert_errors("schedule.download_compressor", download):
        arrived = download.apply(torch.tensor(part), rng)
        if not isinstance(arrived, torch.Tensor) or arrived.shape != part.shape:
            problem = f"{type(download).__name__}.apply returned a wrong value"
            expected = f"a tensor {list(part.shape)}"
            raise InputError("schedule.download_compressor", problem, got=arrived, expected=expected)
    return np.asarray(arrived.numpy(), np.float32)
