"""The event loop: one for the virtual and the wall clock, over any pool of workers.

A task leaves at t and is due at t + cost * jitter on the run's clock. On the virtual clock nothing sleeps:
updates are committed in the order in which they are due, and the loop waits for a worker only when the very
next update is not there yet. On the wall clock an update is committed once it has arrived and is due: a
worker that is faster than the device it stands for is held back, a slower one is taken as it comes.
"""

import time
from collections import deque
from collections.abc import Callable
from math import inf
from threading import Event

from fedraa.callbacks.events import Limits, Progress
from fedraa.devices.availability import Timing
from fedraa.engine.client_results import ClientResults, Evaluating
from fedraa.engine.event_dispatcher import Announcer
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

ATTEMPTS = 4  # of one task, before the run gives up
BLAMED = 2  # attempts that come to nothing on workers that are well, before it is the client's fault
SAVE_SECONDS = 10.0  # between checkpoints, if the steps do not say when; what a death costs at most
SAVE_PAUSE = 20  # and at least so many times what the last one took
ASIDE = 4  # evaluations under way at a time, before the loop waits for the first of them
POLL = 0.1  # seconds that one move waits before the loop looks around
CALLBACK = "callback"  # the reason for an end that a callback asked for


class Loop:
    """Runs a server to one of its limits, by moves between which loop, server and log are consistent.

    `save` is called at the start and with every `checkpoint_every` steps, or where that is None every
    `SAVE_SECONDS` of real time, and says how long the last one took to be written; `stop`, once set by whomever, ends
    the loop after the move under way. What a move has recorded is told by `announcer` when it is done.
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
        announcer: Announcer | None = None,
        figure: str = "accuracy",
        client_results: ClientResults | None = None,
    ) -> None:
        self.server, self.executor, self.log = server, executor, log
        self._limits, self._eval_every, self._every = limits, eval_every, checkpoint_every
        self._timing, self._wall = timing, wall
        self._bounds = Bounds(max_update_norm)
        self._save, self._stop = save, stop
        self._announcer = announcer or Announcer()
        self._figure = figure  # that runs are judged by
        self.aside = ASIDE if limits.goal is None else 0
        """How many evaluations may be under way while the run goes on; 0: each is waited for."""
        self.by: str | None = None
        """Who asked to end the run, before a limit did."""
        self.ending = False
        """Whether a limit or a callback has ended the run, and only the rest is left to do."""
        self._now = 0.0
        self._started = time.monotonic()
        self._tasks: dict[int, tuple[Task, float]] = {}
        self._due = DueQueue()
        self._arrived: dict[int, Update | Fault] = {}
        self._there = DueQueue()  # what has arrived
        self._failures: dict[int, int] = {}
        self._blamed: dict[int, int] = {}  # failures that may be the client's
        self._waiting: deque[int] = deque()
        self._pending: deque[Evaluating] = deque()
        self._client_results = client_results or ClientResults()
        self._evaluated = self._saved = -1  # steps
        self._save_at = 0.0
        self._accuracy: float | None = None  # the last value of that figure
        self._reached: float | None = None  # and of the one that a target is for
        self.time_to_target: float | None = None
        self.server_time, self.worker_time = Stopwatch(), Stopwatch()

    def begin(self) -> None:
        """Start anew."""
        self._waiting.extend(self.server.begin())

    def state(self) -> State:
        """All that is needed to go on; what workers are at is not, they begin it again."""
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
            "heard": self._announcer.heard,
            "by": self.by,
            "time_to_target": self.time_to_target,
            "server_time": dict(self.server_time.seconds),
            "worker_time": dict(self.worker_time.seconds),
        }

    def restore(self, state: State) -> None:
        """Go on from there."""
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
        if "client_results" in state:  # which older ones lack
            self._client_results.restore(state["client_results"])
        self._evaluated, self._saved = state["evaluated"], state["saved"]
        self._accuracy, self.time_to_target = state["accuracy"], state["time_to_target"]
        self.by, self._reached = state.get("by"), state.get("reached", self._accuracy)  # which older ones lack
        if "bounds" in state:  # likewise
            self._bounds.restore(state["bounds"])
        goal = self._limits.goal
        if goal is None or (self._reached is not None and not goal.reached(self._reached)):
            self.time_to_target = None  # it was reached when it was lower
        self.server_time.seconds.update(state["server_time"])
        self.worker_time.seconds.update(state["worker_time"])

    def run(self) -> str | None:
        """Runs to the end; returns what ended it (steps, time, accuracy, target, callback), or None if it was stopped.

        Either way the state to go on from is saved: that of a run which has ended is as it was before anything was
        done for its end, so that a longer run goes on as if it had been so long from the start. Raises CallbackRaised
        when a callback has failed, between two moves.
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
        """Do what is next; returns what has ended the run once all is done."""
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
        """The task is over: its update is taken in, or it came to nothing by its client's fault."""
        for failures in (self._failures, self._blamed):
            failures.pop(task.id, None)
        if isinstance(outcome, Fault):
            self._drop(task, outcome.what)
            return
        self.worker_time.seconds["train"] += outcome.seconds
        before = self.server_time.seconds["mix"]
        with self.server_time.on("mix"):
            self._waiting.extend(self.server.commit(outcome, self._now))
        self._report(self.server_time.seconds["mix"] - before)

    def _drop(self, task: Task, what: str) -> None:
        """Record that a task failed; raise RunFailed if no client is left, or if the run is to stop."""
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
        """Time is up; on the virtual clock as soon as the next update would come after it.

        Not before the evaluation that is due has begun: it is as of its update, not of the end.
        """
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
        """The outcome that was first both there and due; None if there is none yet."""
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
        """What task `number` came to: a good answer, or nothing by its client's fault.

        None if that is not known yet: whatever else has gone wrong is recorded, and the task sent again.
        """
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
        """Sends the task again; the fault instead if it seems to be the client's, for other workers found it, too."""
        failures = self._failures[task.id] = self._failures.get(task.id, 0) + 1
        blamed = self._blamed[task.id] = self._blamed.get(task.id, 0) + fault.of_client
        if blamed == BLAMED:
            return fault
        again = failures < ATTEMPTS
        self._record(fault, "retry" if again else "give up")
        if not again:
            problem = f"task {task.id} failed {ATTEMPTS} times, the last time with {fault.what}"
            raise RunFailed(f"client {task.client}", problem)
        self.executor.submit(task, due)
        return None

    def _record(self, fault: Fault, action: str) -> None:
        self.log.record("fault", self._now, task=fault.task, worker=fault.worker, what=fault.what, action=action)

    def _evaluation_is_due(self) -> bool:
        return self._evaluated != self.server.step and self.server.step % self._eval_every == 0

    def _evaluate(self) -> None:
        """Starts an evaluation of the model as it stands."""
        standing = self._client_results.standing(self.server.task_table)
        result = self.executor.evaluate(self.server.params)
        self._pending.append(Evaluating(self.server.step, self._now, result, standing))
        self._evaluated = self.server.step

    def _collect(self, timeout: float) -> bool:
        """Takes in the first evaluation under way if it is there within `timeout` seconds; whether it was."""
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
        """Recorded only where the number of steps says when: real time must not show in a log."""
        if self._every is not None:
            self.log.record("checkpoint", self._now, step=self.server.step)
        self._saved = self.server.step
        started = time.monotonic()
        took = max(self._save(), time.monotonic() - started)
        self._save_at = time.monotonic() + max(SAVE_SECONDS, SAVE_PAUSE * took)

    def _clock(self) -> float:
        return time.monotonic() - self._started
