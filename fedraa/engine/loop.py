"""The event loop, on the virtual or the wall clock, with any executor.

A task sent at t is due at t + cost * jitter on the run's clock. On the virtual clock updates are applied in the order
in which they are due; the loop waits for a worker only if the next update is missing. On the wall clock an update is
applied once it has arrived and is due: a worker that is faster than its device is held back, a slower one is not.
"""

import time
from collections import deque
from collections.abc import Callable
from math import inf
from threading import Event

from fedraa.callbacks.events import Limits, Progress
from fedraa.devices.availability import Timing
from fedraa.engine.client_results import ClientResults, Evaluating
from fedraa.engine.event_dispatcher import EventDispatcher
from fedraa.engine.executor import Executor
from fedraa.errors import RunFailed
from fedraa.ledger.bad_clients import HOPELESS
from fedraa.ledger.due_queue import DueQueue
from fedraa.messages import Fault, State, Task, Update
from fedraa.rundir.event_log import EventLog
from fedraa.rundir.profile import Stopwatch
from fedraa.server.bounds import Bounds, MaxNorm
from fedraa.server.server import Server
from fedraa.server.update_checks import unsound

# Failed attempts of one task: before the run fails, and on healthy workers before the client is blamed.
ATTEMPTS = 4
BLAMED = 2
# Seconds between checkpoints by time, at least, and as a multiple of the duration of the last one.
SAVE_SECONDS = 10.0
SAVE_PAUSE = 20
# Evaluations in progress at a time.
ASIDE = 4
# Longest wait of one move, in seconds.
POLL = 0.1
# The reason of an end that a callback requested.
CALLBACK = "callback"


class Loop:
    """The loop that runs a server to one of its limits, by moves. Between moves loop, server and log are consistent.

    `save` writes a checkpoint at the start and every `checkpoint_every` steps; with None, every `SAVE_SECONDS` of real
    time. It returns the seconds that the last one took. Setting `stop` ends the loop after the current move. After each
    move `announcer` delivers its events.
    """

    def __init__(
        self,
        server: Server,
        executor: Executor,
        log: EventLog,
        *,
        limits: Limits,
        eval_every: int,
        checkpoint_every: int | None,
        timing: Timing,
        wall: bool,
        max_update_norm: MaxNorm,
        save: Callable[[], float],
        stop: Event,
        announcer: EventDispatcher | None = None,
        figure: str = "accuracy",
        client_results: ClientResults | None = None,
    ) -> None:
        self.server, self.executor, self.log = server, executor, log
        self._limits, self._eval_every, self._every = limits, eval_every, checkpoint_every
        self._timing, self._wall = timing, wall
        self._bounds = Bounds(max_update_norm)
        self._save, self._stop = save, stop
        self._announcer = announcer or EventDispatcher()
        self._figure = figure
        self.aside = ASIDE if limits.goal is None else 0
        """The limit on evaluations in progress; 0 waits for each."""
        self.by: str | None = None
        """The callback that requested a stop, if one did."""
        self.ending = False
        """True if a limit or a callback has ended the run, and only the final evaluation is left."""
        self._now = 0.0
        self._started = time.monotonic()
        self._tasks: dict[int, tuple[Task, float]] = {}
        self._due = DueQueue()
        self._arrived: dict[int, Update | Fault] = {}
        # Arrived tasks by due time.
        self._there = DueQueue()
        self._failures: dict[int, int] = {}
        # Failures that may be the client's.
        self._blamed: dict[int, int] = {}
        self._waiting: deque[int] = deque()
        self._pending: deque[Evaluating] = deque()
        self._client_results = client_results or ClientResults()
        self._evaluated = self._saved = -1
        self._save_at = 0.0
        # The last values of the main metric and of the target's metric.
        self._accuracy: float | None = None
        self._reached: float | None = None
        self.time_to_target: float | None = None
        self.server_time, self.worker_time = Stopwatch(), Stopwatch()

    def begin(self) -> None:
        """Start a new run."""
        self._waiting.extend(self.server.begin())

    def state(self) -> State:
        """Return the state for a checkpoint. Tasks at workers start again after a resume."""
        return {
            "server": self.server.state(),
            "log": self.log.state(),
            "now": self._now,
            "clock": self._clock(),
            "due": [[number, due] for number, (_, due) in self._tasks.items()],
            "waiting": list(self._waiting),
            "pending": [one.state() for one in self._pending],
            "client_results": self._client_results.state(),
            "evaluated": self._evaluated,
            "saved": self._saved,
            "accuracy": self._accuracy,
            "reached": self._reached,
            "bounds": self._bounds.state(),
            "next_undelivered": self._announcer.next_undelivered,
            "by": self.by,
            "time_to_target": self.time_to_target,
            "server_time": dict(self.server_time.seconds),
            "worker_time": dict(self.worker_time.seconds),
        }

    def restore(self, state: State) -> None:
        """Resume from a checkpoint. Older checkpoints lack some keys."""
        self.server.restore(state["server"])
        self.log.restore(state["log"])
        self._now = state["now"]
        self._started = time.monotonic() - state["clock"]
        for number, due in state["due"]:
            self._send(self.server.task_table.in_flight[number].task, due)
        self._waiting.extend(state["waiting"])
        for one in state["pending"]:
            evaluating = self.executor.evaluate(one["params"])
            self._pending.append(Evaluating(one["step"], one["t"], evaluating, one.get("clients", {})))
        if "client_results" in state:
            self._client_results.restore(state["client_results"])
        self._evaluated, self._saved = state["evaluated"], state["saved"]
        self._accuracy, self.time_to_target = state["accuracy"], state["time_to_target"]
        self.by, self._reached = state.get("by"), state.get("reached", self._accuracy)
        if "bounds" in state:
            self._bounds.restore(state["bounds"])
        goal = self._limits.goal
        if goal is None or (self._reached is not None and not goal.reached(self._reached)):
            # The previous, lower target had been reached; the new one has not.
            self.time_to_target = None
        self.server_time.seconds.update(state["server_time"])
        self.worker_time.seconds.update(state["worker_time"])

    def run(self) -> str | None:
        """Run to the end. Return the reason (steps, time, accuracy, target, callback), or None if it was stopped.

        A finished run is checkpointed before its final evaluation, so it can be extended as if it had had the larger
        limit from the start. A stopped run is checkpointed as well. Raises CallbackRaised, between two moves, if a
        callback failed.
        """
        reason = None
        self._tell()
        while reason is None and not self._stop.is_set():
            reason = self._move()
            self._tell()
        if reason is None and not self.ending:
            self._save()
        return reason

    @property
    def now(self) -> float:
        return self._now

    def _move(self) -> str | None:
        """Do the next move. Return the reason for the end once all is done."""
        reason, step = self._ended(), self.server.step
        if reason is not None and not self.ending:
            self._begin_end(reason)
        if self._evaluation_is_due() or (reason is not None and self._evaluated != step):
            with self.server_time.on("evaluate"):
                if len(self._pending) < max(1, self.aside) or self._collect(POLL):
                    self._evaluate()
        elif self._pending and (reason is not None or not self.aside):
            with self.server_time.on("evaluate"):
                self._collect(POLL)
        elif reason is not None:
            self._client_results.finish()
            return reason
        elif self._waiting:
            with self.server_time.on("dispatch"):
                self._offer()
        elif self._checkpoint_is_due():
            with self.server_time.on("save"):
                self._checkpoint()
        elif (outcome := self._next_real() if self._wall else self._next_virtual()) is not None:
            self._settle(*outcome)
        return None

    def _settle(self, task: Task, outcome: Update | Fault) -> None:
        """Apply the update of a finished task, or drop a task that failed by its client's fault."""
        for failures in (self._failures, self._blamed):
            failures.pop(task.id, None)
        if isinstance(outcome, Fault):
            self._drop(task, outcome.error)
            return
        self.worker_time.seconds["train"] += outcome.seconds
        before = self.server_time.seconds["mix"]
        with self.server_time.on("mix"):
            self._waiting.extend(self.server.commit(outcome, self._now))
        self._report(self.server_time.seconds["mix"] - before)

    def _drop(self, task: Task, what: str) -> None:
        """Record that a task failed. Raise RunFailed if no client is left, or if the run is to stop."""
        self._waiting.extend(self.server.drop(task.id, what, self._now))
        bad = self.server.ledger.bad_clients
        if bad.stop and task.client in bad.left_out:
            raise RunFailed(
                f"client {task.client}",
                f"it failed {bad.retries + 1} times in a row, the last time with task {task.id}: {what}",
                hint="give --on-bad-client skip to continue without such clients",
            )
        if not self._tasks and not self._waiting:
            times = f"all {len(bad.left_out)} failed {bad.retries + 1} times in a row"
            raise RunFailed("clients", f"{times}; the last, client {task.client} with task {task.id}: {what}")
        if bad.hopeless:
            problem = f"the first {HOPELESS} all failed; the last, client {task.client} with task {task.id}: {what}"
            raise RunFailed("clients", problem)

    def _tell(self) -> None:
        asking = self._announcer.tell()
        if self.by is None and not self.ending:
            self.by = asking

    def _report(self, mixed: float) -> None:
        self._announcer.progress(
            Progress(
                self.server.step,
                self._now,
                self._accuracy,
                len(self._tasks),
                self._limits,
                self.server.task_table.staleness,
                *self.executor.busy(),
                self._figure,
                mixed,
            )
        )

    def _ended(self) -> str | None:
        limits = self._limits
        if self.by is not None:
            return CALLBACK
        if self.time_to_target is not None:
            return "accuracy" if self._limits.target is None else "target"
        if limits.steps is not None and self.server.step >= limits.steps:
            return "steps"
        return "time" if self._late() else None

    def _late(self) -> bool:
        """Return True if time is up; on the virtual clock, if the next update is later. Due evaluations go first."""
        limit = self._limits.time
        if limit is None or self._evaluation_is_due() or (not self._wall and self._waiting):
            return False
        return (self._clock() if self._wall else self._due.next_due) > limit

    def _begin_end(self, reason: str) -> None:
        with self.server_time.on("save"):
            self._save()
        self.ending = True
        if reason == "time" and self._limits.time is not None:
            self._now = max(self._now, self._limits.time)

    def _offer(self) -> None:
        task = self.server.assign(self._waiting[0], self._now)
        del self._waiting[0]
        self._send(task, self._timing.due(task.client, task.turn, self._now, task.cost))

    def _send(self, task: Task, due: float) -> None:
        self._tasks[task.id] = (task, due)
        if not self._wall:
            self._due.push(due, task.id)
        self.executor.submit(task, due)

    def _next_virtual(self) -> tuple[Task, Update | Fault] | None:
        due, number = self._due.next_due, self._due.next_task
        if due == inf:
            problem = f"none of the {len(self._tasks)} devices that train will be available again"
            raise RunFailed("availability", problem, hint="end the run earlier")
        with self.server_time.on("wait"):
            outcome = self.executor.wait(number, POLL)
        final = None if outcome is None else self._admit(outcome, number)
        if final is None:
            return None
        self._due.pop()
        self._now = due
        return self._tasks.pop(number)[0], final

    def _next_real(self) -> tuple[Task, Update | Fault] | None:
        """Return the first outcome that has arrived and is due, or None if there is none yet."""
        patience = min(POLL, max(0.0, self._there.next_due - self._clock())) if self._there else POLL
        with self.server_time.on("wait"):
            outcomes = self.executor.ready(patience)
        for outcome in outcomes:
            number = None if outcome.task in self._arrived else outcome.task
            if (final := self._admit(outcome, number)) is not None:
                assert number is not None
                self._arrived[number] = final
                self._there.push(self._tasks[number][1], number)
        if self._pending:
            self._collect(0)
        self._now = self._clock()
        if not self._there or self._there.next_due > self._now:
            return None
        _, number = self._there.pop()
        return self._tasks.pop(number)[0], self._arrived.pop(number)

    def _admit(self, outcome: Update | Fault, number: int | None) -> Update | Fault | None:
        """Return the accepted update or a Fault of the client. Log and resubmit other failures, and return None."""
        task, due = (None, 0.0) if number is None else self._tasks.get(number, (None, 0.0))
        update = outcome if isinstance(outcome, Update) else None
        if isinstance(outcome, Update):
            with self.server_time.on("mix"):
                wrong = self._bounds.refuse(outcome, task)
            if wrong is None:
                return outcome
            outcome = Fault(number, None, f"update refused: {wrong}", of_client=True)
        if task is None or outcome.task is None:
            self._record(outcome, "none")
            return None
        if outcome.of_client and (broken := unsound(task, update)) is not None:
            raise RunFailed(
                "model",
                f"it was sent to client {task.client} with task {task.id}, and has {broken}",
                hint="give --max-update-norm auto to refuse such updates",
            )
        return self._failed(task, due, outcome)

    def _failed(self, task: Task, due: float, fault: Fault) -> Fault | None:
        """Send the task again. Return the fault if several workers blamed the client."""
        failures = self._failures[task.id] = self._failures.get(task.id, 0) + 1
        blamed = self._blamed[task.id] = self._blamed.get(task.id, 0) + fault.of_client
        if blamed == BLAMED:
            return fault
        again = failures < ATTEMPTS
        self._record(fault, "retry" if again else "give up")
        if not again:
            problem = f"task {task.id} failed {ATTEMPTS} times, the last time with {fault.error}"
            raise RunFailed(f"client {task.client}", problem)
        self.executor.submit(task, due)
        return None

    def _record(self, fault: Fault, action: str) -> None:
        self.log.record("fault", self._now, task=fault.task, worker=fault.worker, error=fault.error, action=action)

    def _evaluation_is_due(self) -> bool:
        return self._evaluated != self.server.step and self.server.step % self._eval_every == 0

    def _evaluate(self) -> None:
        """Start an evaluation of the current model."""
        standing = self._client_results.standing(self.server.task_table)
        result = self.executor.evaluate(self.server.params)
        self._pending.append(Evaluating(self.server.step, self._now, result, standing))
        self._evaluated = self.server.step

    def _collect(self, timeout: float) -> bool:
        """Record the first evaluation if it is ready within `timeout` seconds. Return True if it was."""
        evaluation = self._pending[0].result.result(timeout)
        if evaluation is None:
            return False
        pending = self._pending.popleft()
        self._accuracy = evaluation.figures[self._figure]
        self.worker_time.seconds["evaluate"] += evaluation.seconds
        self.log.evaluated(pending.step, pending.t, evaluation)
        self._client_results.take(pending, evaluation)
        goal = self._limits.goal
        if goal is not None:
            self._reached = evaluation.figures[goal.name]
            if goal.reached(self._reached):
                self.time_to_target = pending.t
        return True

    def _checkpoint_is_due(self) -> bool:
        if self._every is None:
            return time.monotonic() >= self._save_at
        return self._saved != self.server.step and self.server.step % self._every == 0

    def _checkpoint(self) -> None:
        """Save. Record the checkpoint only if steps decide it: a log must not depend on real time."""
        if self._every is not None:
            self.log.record("checkpoint", self._now, step=self.server.step)
        self._saved = self.server.step
        started = time.monotonic()
        took = max(self._save(), time.monotonic() - started)
        self._save_at = time.monotonic() + max(SAVE_SECONDS, SAVE_PAUSE * took)

    def _clock(self) -> float:
        return time.monotonic() - self._started
