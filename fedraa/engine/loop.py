"""The event loop of a run, on the virtual or the wall clock, with any executor.

A task that is sent at time t is due at t + cost * jitter on the run's clock. On the virtual clock, updates are applied
in the order in which they are due. The loop waits for a worker only if the next update is missing. On the wall clock,
an update is applied as soon as it has arrived and is due, so a worker can be faster than the simulated device. An
update that arrives or is due after the deadline of its round is lost.
"""

from collections import deque
from collections.abc import Callable
from math import inf
from threading import Event

from fedraa.callbacks.events import Progress
from fedraa.devices.availability import LEFT_HINT
from fedraa.engine.checkpoint_timer import CheckpointTimer
from fedraa.engine.client_results import ClientResults
from fedraa.engine.evaluation_queue import EvaluationQueue
from fedraa.engine.event_dispatcher import EventDispatcher
from fedraa.engine.executor import Executor
from fedraa.engine.loop_options import LoopOptions
from fedraa.engine.loop_state import CALLBACK, LoopState, StopReason
from fedraa.engine.run_clock import RunClock
from fedraa.engine.task_failures import FailureAction, TaskFailures, check_clients_left, check_sent_model, give_up
from fedraa.engine.tasks_in_flight import SentTask, TasksInFlight
from fedraa.errors import RunFailed
from fedraa.messages import Fault, State, Task, Update
from fedraa.rundir.event_log import EventLog
from fedraa.rundir.profile import RunTimes
from fedraa.server.server import Server
from fedraa.server.update_checks import Bounds

# The longest wait of one step. After it, the loop checks for a request to stop.
POLL_INTERVAL_S = 0.1

Outcome = Update | Fault


class Loop:
    """The loop that runs a server over an executor and a clock.

    It orders events, evaluations, checkpoints and retries. The server and its ledger decide everything about training.

    Args:
        server: The server.
        executor: Trains the tasks and evaluates the models.
        log: Receives the events.
        options: The settings of the loop.
        save: Writes a checkpoint. Returns the seconds that the last finished checkpoint took.
        stop: Ends the loop after the current step when it is set.
        dispatcher: Delivers the events after each step.
        client_results: Writes the results of each client.
    """

    def __init__(
        self,
        server: Server,
        executor: Executor,
        log: EventLog,
        options: LoopOptions,
        *,
        save: Callable[[], float],
        stop: Event,
        dispatcher: EventDispatcher | None = None,
        client_results: ClientResults | None = None,
    ) -> None:
        self.phase = LoopState.RUNNING
        self.stop_source: str | None = None
        """The name of the callback that requested the end, if one did."""
        self.stop_reason: StopReason | None = None
        """The reason of the end, once the run is finished."""
        self.server = server
        self.executor = executor
        self.log = log
        self.clock = RunClock(options.timing, wall=options.wall)
        self.evaluations = EvaluationQueue(
            executor,
            log,
            every=options.eval_every,
            main_metric=options.main_metric,
            target=options.limits.goal,
            client_results=client_results or ClientResults(),
            personal_clients=options.personal_clients,
        )
        self.times = RunTimes()
        self._limits = options.limits
        self._bounds = Bounds(options.max_update_norm)
        self._checkpoints = CheckpointTimer(options.checkpoint_every)
        self._save = save
        self._stop_request = stop
        self._dispatcher = dispatcher or EventDispatcher()
        self._waiting_clients: deque[int] = deque()
        self._tasks = TasksInFlight()
        self._failures = TaskFailures()

    def begin(self) -> None:
        """Start a new run and its clock."""
        self.clock.exclude(self.clock.elapsed_seconds())
        self._waiting_clients.extend(self.server.begin())

    def state(self) -> State:
        """Return the state for a checkpoint. Tasks at workers start again after a resume."""
        return {
            "server": self.server.state(),
            "log": self.log.state(),
            "clock": self.clock.state(),
            "tasks": [[number, due] for number, due in self._tasks.due_times()],
            "failures": self._failures.state(),
            "waiting_clients": list(self._waiting_clients),
            "evaluations": self.evaluations.state(),
            "checkpoints": self._checkpoints.state(),
            "bounds": self._bounds.state(),
            "next_undelivered": self._dispatcher.next_undelivered,
            "stop_source": self.stop_source,
            "times": self.times.state(),
        }

    def restore(self, state: State) -> None:
        """Continue from a checkpoint."""
        self.server.restore(state["server"])
        self.log.restore(state["log"])
        self.clock.restore(state["clock"])
        for number, due in state["tasks"]:
            self._send_task(self.server.task_table.in_flight[number].task, due)
        self._failures.restore(state["failures"])
        self._waiting_clients.extend(state["waiting_clients"])
        self.evaluations.restore(state["evaluations"])
        self._checkpoints.restore(state["checkpoints"])
        self._bounds.restore(state["bounds"])
        self.stop_source = state["stop_source"]
        self.times.restore(state["times"])

    def run(self) -> StopReason | None:
        """Run to the end. Return the reason of the end, or None for a stopped run that can be resumed.

        Raises CallbackRaised if a callback fails.
        """
        self._deliver_events()
        while self.phase is not LoopState.FINISHED and not self._stop_request.is_set():
            self._take_step()
            self._deliver_events()
        # Save only a run that was still training. If only evaluations were in progress, the run is already saved.
        if self.phase is LoopState.RUNNING:
            self._save()
        return self.stop_reason

    def _take_step(self) -> None:
        """Take the next step. Between two steps the loop, the server and the log are consistent."""
        reason = self._reason_to_stop()
        if reason is not None and self.phase is LoopState.RUNNING:
            self._begin_draining(reason)
        draining = self.phase is LoopState.DRAINING
        step = self.server.step

        # 1. Evaluations: the model of this step is evaluated before the next update changes it. A run with a target, or
        # with a callback that may stop it, waits for each result.
        if self.evaluations.due(step) or (draining and self.evaluations.last_step != step):
            self._start_evaluation()
        elif self.evaluations.pending and (draining or self.evaluations.awaits_each):
            self._collect_evaluation(POLL_INTERVAL_S)

        # 2. The end: an evaluation may have reached the target, so each step checks again for a reason to stop.
        elif draining:
            self.evaluations.finish()
            self.stop_reason = reason
            self.phase = LoopState.FINISHED

        # 3. Dispatch: every waiting client gets a task before time moves on.
        elif self._waiting_clients:
            self._dispatch_next(self._waiting_clients[0])

        # 4. A checkpoint: it is written between two updates, when every client has a task.
        elif self._checkpoints.due(step):
            self._write_checkpoint()

        # 5. A Poisson round may have no clients. It ends at once.
        elif not self._tasks:
            self._close_round()

        # 6. Time moves to the outcome that is due next. The result is None if this outcome is missing, or if its task
        # was sent again after a failure.
        else:
            finished = self._next_on_wall_clock() if self.clock.wall else self._next_on_virtual_clock()
            if finished is not None:
                self._finish_task(*finished)

    def _deliver_events(self) -> None:
        """Deliver new events to the callbacks, which may request the end of the run, even if a later one fails."""
        try:
            self._dispatcher.deliver()
        finally:
            if self.phase is LoopState.RUNNING:
                self.stop_source = self.stop_source or self._dispatcher.stop_source

    def _reason_to_stop(self) -> StopReason | None:
        """Return the first reason to end now: callback, target, steps, time, participations. None if there is none."""
        if self.stop_source is not None:
            return CALLBACK
        if self.evaluations.time_to_target is not None:
            return "accuracy" if self._limits.target is None else "target"
        if self._limits.steps is not None and self.server.step >= self._limits.steps:
            return "steps"
        if self._time_is_up():
            return "time"
        ledger = self.server.ledger
        if not (self._tasks or self._waiting_clients) and len(ledger.bad_clients.excluded) == ledger.clients:
            return "participations"
        return None

    def _time_is_up(self) -> bool:
        """Return True if the time is over the limit. On the virtual clock, the due time of the next update counts."""
        limit = self._limits.time
        # If an evaluation is due, it runs before the end, because the server reached this model within the time limit.
        if limit is None or self.evaluations.due(self.server.step):
            return False
        if self.clock.wall:
            return self.clock.elapsed_seconds() > limit
        # A waiting client's next task may be due before the limit.
        if self._waiting_clients or not self._tasks:
            return False
        return min(self._tasks.next_due, self.server.closes_at) > limit

    def _begin_draining(self, reason: StopReason) -> None:
        """Save a checkpoint, from which the run can be extended. After this, only finish evaluations in progress."""
        self._failures.check_any_success(self.server.ledger)
        with self.times.server.on("save"):
            self._save()
        self.phase = LoopState.DRAINING
        if reason == "time" and self._limits.time is not None:
            self.clock.now = max(self.clock.now, self._limits.time)

    def _start_evaluation(self) -> None:
        """Start an evaluation of the current model. If too many are in progress, first wait until one ends."""
        if self.evaluations.has_room or self._collect_evaluation(POLL_INTERVAL_S):
            with self.times.server.on("evaluate"):
                self.evaluations.start(self.server, self.clock.now)

    def _collect_evaluation(self, timeout: float) -> bool:
        """Record the oldest evaluation if it is ready within `timeout` seconds. Return True if it was."""
        with self.times.server.on("evaluate"):
            evaluation = self.evaluations.collect(timeout)
        if evaluation is None:
            return False
        self.times.workers.seconds["evaluate"] += evaluation.seconds
        return True

    def _dispatch_next(self, client: int) -> None:
        """Send the next task to `client`, which is the first of the waiting clients."""
        with self.times.server.on("dispatch"):
            task = self.server.assign(client, self.clock.now)
            self._waiting_clients.popleft()
            self._send_task(task, self.clock.due(task))

    def _send_task(self, task: Task, due: float) -> None:
        self._tasks.add(task, due)
        self.executor.submit(task, due)

    def _write_checkpoint(self) -> None:
        """Save a checkpoint. Log it only if `checkpoint_every` is set: other checkpoints depend on real time."""
        with self.times.server.on("save"):
            if self._checkpoints.every is not None:
                self.log.record("checkpoint", self.clock.now, step=self.server.step)
            self._checkpoints.start(self.server.step)
            self._checkpoints.finish(self._save())

    def _next_on_virtual_clock(self) -> tuple[Task, Outcome] | None:
        """Return the task that is due first and its outcome, and move the clock to the due time.

        Return None if the outcome has not arrived, or if the deadline of the round comes first.
        """
        due = self._tasks.next_due
        number = self._tasks.next_task
        all_gone = due == inf and len(self._tasks) == self.server.ledger.clients
        if self.server.closes_at < due and not all_gone:
            self.clock.now = self.server.closes_at
            self._close_round()
            return None
        if due == inf:
            problem = f"none of the {len(self._tasks)} devices that train will be available again"
            raise RunFailed("availability", problem, hint=LEFT_HINT)
        with self.times.server.on("wait"):
            outcome = self.executor.wait(number, POLL_INTERVAL_S)
        if outcome is None:
            return None
        accepted = self._accept_outcome(outcome, number)
        if accepted is None:
            return None
        self.clock.now = due
        return self._tasks.remove(number), accepted

    def _next_on_wall_clock(self) -> tuple[Task, Outcome] | None:
        """Return the first due task whose outcome has arrived, and the outcome. Return None without such a task."""
        closes_at = self.server.closes_at
        until_due = max(0.0, min(self._tasks.next_outcome_due, closes_at) - self.clock.elapsed_seconds())
        with self.times.server.on("wait"):
            outcomes = self.executor.ready_outcomes(min(POLL_INTERVAL_S, until_due))
        if self.clock.elapsed_seconds() > closes_at:
            outcomes = [outcome for outcome in outcomes if isinstance(outcome, Fault)]
        for outcome in outcomes:
            number = None if self._tasks.has_arrived(outcome.task) else outcome.task
            accepted = self._accept_outcome(outcome, number)
            if accepted is not None and number is not None:
                left = self.server.task_table.in_flight[number].left
                self._tasks.add_outcome(number, accepted, self.clock.elapsed_seconds() - left)
        if self.evaluations.pending:
            self._collect_evaluation(0)
        self.clock.now = self.clock.elapsed_seconds()
        if self._tasks.next_outcome_due > min(self.clock.now, closes_at):
            if closes_at <= self.clock.now:
                self._close_round()
            return None
        return self._tasks.pop_outcome()

    def _close_round(self) -> None:
        with self.times.server.on("mix"):
            self._waiting_clients.extend(self.server.close_round(self.clock.now))
        self._forget_lost_tasks()

    def _forget_lost_tasks(self) -> None:
        """Stop waiting for the tasks that the server counts as lost."""
        for number in self.server.task_table.lost:
            self._tasks.discard(number)
            self._failures.forget_task(number)
            self.executor.cancel(number)
        self.server.task_table.lost.clear()

    def _accept_outcome(self, outcome: Outcome, number: int | None) -> Outcome | None:
        """Return an accepted update, or a fault that the client caused. Handle other outcomes and return None.

        `number` is the number of the outcome's task, or None if the task already has an outcome.
        """
        sent = self._tasks.find(number)
        if isinstance(outcome, Update):
            with self.times.server.on("mix"):
                problem = self._bounds.judge_update(outcome, None if sent is None else sent.task)
            if problem is None:
                return outcome
            fault = Fault(number, None, f"update refused: {problem}", of_client=True)
        else:
            fault = outcome
        if sent is None or fault.task is None:
            self._record_fault(fault, "none")
            return None
        if fault.of_client:
            check_sent_model(sent.task, outcome)
        return self._handle_failure(sent, fault)

    def _handle_failure(self, sent: SentTask, fault: Fault) -> Fault | None:
        """Return the fault if the client is its cause. Otherwise send the task again and return None."""
        task = sent.task
        action = self._failures.add(task.id, fault)
        if action is FailureAction.DROP:
            return fault
        self._record_fault(fault, action.value)
        if action is FailureAction.GIVE_UP:
            give_up(task, fault)
        self.executor.submit(task, sent.due)
        return None

    def _record_fault(self, fault: Fault, action: str) -> None:
        self.log.record("fault", self.clock.now, task=fault.task, worker=fault.worker, error=fault.error, action=action)

    def _finish_task(self, task: Task, outcome: Outcome) -> None:
        """Apply the update of a finished task, or drop a task whose client caused the failure."""
        self._failures.forget_task(task.id)
        if isinstance(outcome, Fault):
            self._drop_task(task, outcome)
            return
        self.times.workers.seconds["train"] += outcome.seconds
        before = self.times.server.seconds["mix"]
        with self.times.server.on("mix"):
            self._waiting_clients.extend(self.server.commit(outcome, self.clock.now))
        self._forget_lost_tasks()
        self._report_progress(self.times.server.seconds["mix"] - before)

    def _drop_task(self, task: Task, fault: Fault) -> None:
        """Drop a failed task. Raise an error if the run cannot continue without the client of this task."""
        self._waiting_clients.extend(self.server.drop(task.id, fault.error, self.clock.now))
        self._forget_lost_tasks()
        check_clients_left(self.server.ledger.bad_clients, task, fault, self.server.ledger.clients)

    def _report_progress(self, commit_seconds: float) -> None:
        busy, workers = self.executor.busy()
        self._dispatcher.progress(
            Progress(
                step=self.server.step,
                t=self.clock.now,
                metric=self.evaluations.main_value,
                in_flight=len(self._tasks),
                limits=self._limits,
                staleness=self.server.task_table.staleness,
                busy=busy,
                workers=workers,
                metric_name=self.evaluations.main_metric,
                commit_seconds=commit_seconds,
            )
        )
