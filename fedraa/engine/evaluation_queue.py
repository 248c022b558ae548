"""Evaluations that run in parallel with training, and the check whether a model reached the target."""

from collections import deque
from collections.abc import Sequence

from fedraa.engine.client_results import ClientResults, QueuedEvaluation
from fedraa.engine.executor import Executor
from fedraa.messages import Evaluation, State
from fedraa.objectives import Target
from fedraa.rundir.event_log import EventLog
from fedraa.server.server import Server

# Maximum number of evaluations in progress. It has no effect if training waits for each evaluation.
MAX_PENDING_EVALS = 4


class EvaluationQueue:
    """A queue of evaluations in progress. It starts them, and records their results in the order of their steps.

    Args:
        executor: Evaluates the models.
        log: Receives one line for each evaluation.
        every: The number of server steps between evaluations. The first evaluation is before the first step.
        main_metric: The metric that the progress of the run shows.
        target: The target that ends the run. With a target, training waits for each evaluation.
        client_results: Writes the results of each client.
        personal_clients: The clients whose personal models are evaluated.
    """

    def __init__(
        self,
        executor: Executor,
        log: EventLog,
        *,
        every: int,
        main_metric: str,
        target: Target | None,
        client_results: ClientResults,
        personal_clients: Sequence[int] = (),
    ) -> None:
        self.max_pending_evals = MAX_PENDING_EVALS if target is None else 0
        """The maximum number of evaluations in progress. With 0, training waits for each evaluation."""
        self.last_step = -1
        """The server step of the newest evaluation, finished or not; -1 before the first."""
        self.main_metric = main_metric
        self.main_value: float | None = None
        """The main metric in the last finished evaluation."""
        self.time_to_target: float | None = None
        """The time on the run's clock at which the model reached the target, or None."""
        self._executor = executor
        self._log = log
        self._every = every
        self._target = target
        self._client_results = client_results
        self._personal_clients = personal_clients
        self._pending: deque[QueuedEvaluation] = deque()
        # The target metric's value in the last finished evaluation.
        self._target_value: float | None = None

    @property
    def pending(self) -> int:
        """Number of evaluations in progress."""
        return len(self._pending)

    @property
    def awaits_each(self) -> bool:
        """True if training waits for the result of every evaluation."""
        return self.max_pending_evals == 0

    @property
    def has_room(self) -> bool:
        """True if another evaluation may start now."""
        return len(self._pending) < max(1, self.max_pending_evals)

    def due(self, step: int) -> bool:
        """Return True if the model after `step` server steps must be evaluated before it changes."""
        return step != self.last_step and step % self._every == 0

    def start(self, server: Server, now: float) -> None:
        """Start an evaluation of the server's model at the time `now` of the run's clock."""
        counts = self._client_results.snapshot_clients(server.task_table)
        kept: State = {}
        if self._personal_clients:
            kept = server.task_table.client_states.copy_rows(self._personal_clients)
        result = self._executor.evaluate(server.params, kept)
        self._pending.append(QueuedEvaluation(server.step, now, result, counts))
        self.last_step = server.step

    def collect(self, timeout: float) -> Evaluation | None:
        """Record and return the oldest evaluation, or return None if it takes longer than `timeout` seconds."""
        evaluation = self._pending[0].result.result(timeout)
        if evaluation is None:
            return None
        pending = self._pending.popleft()
        self.main_value = evaluation.metrics[self.main_metric]
        self._log.evaluated(pending.step, pending.t, evaluation)
        self._client_results.take(pending, evaluation)
        if self._target is not None:
            self._target_value = evaluation.metrics[self._target.name]
            if self._target.reached(self._target_value):
                self.time_to_target = pending.t
        return evaluation

    def finish(self) -> None:
        """Write the clients' results of the last evaluation."""
        self._client_results.finish()

    def state(self) -> State:
        return {
            "last_step": self.last_step,
            "main_value": self.main_value,
            "time_to_target": self.time_to_target,
            "pending": [evaluating.state() for evaluating in self._pending],
            "target_value": self._target_value,
            "client_results": self._client_results.state(),
        }

    def restore(self, state: State) -> None:
        """Continue from a checkpoint. Evaluations that were in progress start again."""
        self.last_step = state["last_step"]
        self.main_value = state["main_value"]
        self._target_value = state["target_value"]
        self._client_results.restore(state["client_results"])
        for pending in state["pending"]:
            result = self._executor.evaluate(pending["params"], pending["kept"])
            self._pending.append(QueuedEvaluation(pending["step"], pending["t"], result, pending["counts"]))
        # A resumed run may have a harder target than before. The last evaluation may not reach the new target.
        if self._target is not None and self._target_value is not None and self._target.reached(self._target_value):
            self.time_to_target = state["time_to_target"]
