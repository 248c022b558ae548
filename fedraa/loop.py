"""The event loop: one for the virtual and the wall clock, over any pool of workers.

A task leaves at t and is due at t + cost * jitter on the run's clock. On the virtual clock nothing sleeps:
updates are committed in the order in which they are due, and the loop waits for a worker only when the very
next update is not there yet. On the wall clock an update is committed once it has arrived and is due: a
worker that is faster than the device it stands for is held back, a slower one is taken as it comes.
"""

import heapq
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from fedraa.fleet import jitter_factor
from fedraa.history import EventLog
from fedraa.messages import Fault, Task, Update
from fedraa.pool import PendingEvaluation, Pool
from fedraa.server import Server

ATTEMPTS = 4  # of one task, before the run gives up
POLL = 0.1  # seconds that the wall clock waits for an arrival before it looks around


class RunFailed(Exception):
    """The run cannot go on; the message says why in one sentence."""


@dataclass(frozen=True)
class Limits:
    """When a run ends, whichever comes first; None is no limit."""

    steps: int | None
    time: float | None
    accuracy: float | None


@dataclass(frozen=True)
class Progress:
    """How far a run is, for whoever watches."""

    step: int
    t: float
    accuracy: float | None
    in_flight: int
    limits: Limits


class Loop:
    """Runs a server to one of its limits; `stop` may be called from another thread."""

    def __init__(
        self,
        server: Server,
        pool: Pool,
        log: EventLog,
        *,
        limits: Limits,
        eval_every: int,
        jitter: float,
        seed: int,
        wall: bool,
        watch: Callable[[Progress], None] = lambda progress: None,
    ) -> None:
        self.server, self.pool, self.log = server, pool, log
        self._limits, self._eval_every = limits, eval_every
        self._jitter, self._seed, self._wall = jitter, seed, wall
        self._watch = watch
        self._now = 0.0
        self._started = time.monotonic()
        self._tasks: dict[int, tuple[Task, float]] = {}
        self._due: list[tuple[float, int]] = []
        self._arrived: dict[int, Update] = {}
        self._attempts: dict[int, int] = {}
        self._pending: tuple[int, float, PendingEvaluation] | None = None
        self._evaluated = -1
        self._accuracy: float | None = None
        self._stop = False
        self.time_to_target: float | None = None

    def stop(self) -> None:
        self._stop = True

    def run(self) -> str:
        """Runs to the end; returns which limit ended it: steps, time, accuracy or interrupt."""
        self._evaluate()
        self._offer(self.server.begin())
        while (reason := self._ended() or self._late()) is None:
            update = self._next_real() if self._wall else self._next_virtual()
            if update is None:
                continue
            step = self.server.step
            waiting = self.server.commit(update, self._now)
            if self.server.step > step and self.server.step % self._eval_every == 0:
                self._evaluate()
            if self._ended() is None:
                self._offer(waiting)
            self._watch(Progress(self.server.step, self._now, self._accuracy, len(self._tasks), self._limits))
        if self._evaluated != self.server.step:
            self._evaluate()
        self._collect()
        return reason

    @property
    def now(self) -> float:
        return self._now

    def _ended(self) -> str | None:
        limits = self._limits
        if self._stop:
            return "interrupt"
        if self.time_to_target is not None:
            return "accuracy"
        if limits.steps is not None and self.server.step >= limits.steps:
            return "steps"
        return None

    def _late(self) -> str | None:
        """Time is up; on the virtual clock as soon as the next update would come after it."""
        limit = self._limits.time
        if limit is None or (self._clock() if self._wall else self._due[0][0]) <= limit:
            return None
        self._now = max(self._now, limit)
        return "time"

    def _offer(self, clients: Iterable[int]) -> None:
        for client in clients:
            task = self.server.assign(client, self._now)
            due = self._now + task.cost * jitter_factor(self._seed, self._jitter, client, task.turn)
            self._tasks[task.id] = (task, due)
            if not self._wall:
                heapq.heappush(self._due, (due, task.id))
            self.pool.submit(task, due)

    def _next_virtual(self) -> Update | None:
        due, number = self._due[0]
        outcome = self.pool.wait(number)
        if isinstance(outcome, Fault):
            self._retry(outcome)
            return None
        heapq.heappop(self._due)
        del self._tasks[number]
        self._now = due
        return outcome

    def _next_real(self) -> Update | None:
        """The update that was first both there and due; None if there is none yet."""
        first = min(((self._tasks[number][1], number) for number in self._arrived), default=None)
        patience = POLL if first is None else min(POLL, max(0.0, first[0] - self._clock()))
        for outcome in self.pool.ready(patience):
            if isinstance(outcome, Fault):
                self._retry(outcome)
            else:
                self._arrived[outcome.task] = outcome
        if self._pending is not None and self._pending[2].done():
            self._collect()
        self._now = self._clock()
        if first is None or first[0] > self._now:
            return None
        del self._tasks[first[1]]
        return self._arrived.pop(first[1])

    def _retry(self, fault: Fault) -> None:
        task, due = self._tasks[fault.task]
        self._attempts[fault.task] = self._attempts.get(fault.task, 1) + 1
        again = self._attempts[fault.task] <= ATTEMPTS
        action = "retry" if again else "give up"
        self.log.record("fault", self._now, what=fault.what, worker=fault.worker, task=fault.task, action=action)
        if not again:
            raise RunFailed(f"task {fault.task} of client {task.client} failed {ATTEMPTS} times: {fault.what}")
        self.pool.submit(task, due)

    def _evaluate(self) -> None:
        """Starts an evaluation of the model as it stands, after taking in the one before."""
        self._collect()
        self._pending = (self.server.step, self._now, self.pool.evaluate(self.server.params.copy()))
        self._evaluated = self.server.step
        if self._limits.accuracy is not None:
            self._collect()

    def _collect(self) -> None:
        if self._pending is None:
            return
        step, t, result = self._pending
        self._pending = None
        evaluation = result.result()
        self._accuracy = evaluation.accuracy
        self.log.evaluated(step, t, evaluation)
        if self._limits.accuracy is not None and evaluation.accuracy >= self._limits.accuracy:
            self.time_to_target = t

    def _clock(self) -> float:
        return time.monotonic() - self._started
