"""The rows of clients.csv: metrics of single clients in the evaluations that the user selects."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from fedraa.components.state import Stateful
from fedraa.data import Federated
from fedraa.engine.executor import PendingEvaluation
from fedraa.messages import Evaluation, State
from fedraa.server.tasks import TaskTable

Columns = Mapping[str, Any]
"""The columns of some rows of clients.csv: arrays or lists of one length."""


@dataclass(frozen=True)
class QueuedEvaluation:
    """An evaluation in progress, with the step and the time of its model.

    `counts` is the result of `ClientResults.snapshot_clients` at the start of the evaluation.
    """

    step: int
    t: float
    result: PendingEvaluation
    counts: State

    def state(self) -> State:
        return {
            "step": self.step,
            "t": self.t,
            "params": self.result.params,
            "kept": self.result.kept,
            "counts": self.counts,
        }


class ClientResults(Stateful):
    """A writer of each client's results at every n-th evaluation and at the last evaluation.

    Args:
        data: The clients' data. Only the numbers of samples and the names of the clients are used.
        every: The number n. The first evaluation and every n-th evaluation after it are written. With None, only the
            last evaluation is written.
        write: A function of the step, the time and the columns of one evaluation. With None, nothing is written.
    """

    state_fields: ClassVar[tuple[str, ...]] = ("_evaluations", "_unwritten")

    def __init__(
        self,
        data: Federated | None = None,
        every: int | None = None,
        write: Callable[[int, float, Columns], None] | None = None,
    ) -> None:
        self._data = data
        self._every = every
        self._write = write
        self._evaluations = 0
        self._unwritten: State | None = None

    def snapshot_clients(self, tasks: TaskTable) -> State:
        """Return the number of applied updates of each client, and the reasons for quarantine."""
        if self._write is None:
            return {}
        quarantined = [[client, reason] for client, reason in tasks.quarantined.items()]
        return {"updates": tasks.applied.copy(), "quarantined": quarantined}

    def take(self, pending: QueuedEvaluation, evaluation: Evaluation) -> None:
        """Write the results of the evaluation if `every` selects it. Otherwise keep the results for `finish`."""
        if self._write is None or not evaluation.clients:
            return
        self._unwritten = {
            "step": pending.step,
            "t": pending.t,
            "clients": dict(evaluation.clients),
            "counts": dict(pending.counts),
        }
        if self._every is not None and self._evaluations % self._every == 0:
            self.finish()
        self._evaluations += 1

    def finish(self) -> None:
        """Write the results of the last evaluation, unless they are already written."""
        if self._unwritten is not None:
            assert self._write is not None
            self._write(self._unwritten["step"], self._unwritten["t"], self._make_columns(self._unwritten))
            self._unwritten = None

    def _make_columns(self, results: State) -> Columns:
        assert self._data is not None
        counts = results["counts"]
        reasons = dict(map(tuple, counts["quarantined"]))
        measured = dict(results["clients"])
        clients = measured.pop("client")
        numbers = clients.tolist()
        names = [""] * len(numbers)
        if self._data.names is not None:
            names = [self._data.names[client] for client in numbers]
        return {
            "client": clients,
            "name": names,
            "samples": self._data.sizes[clients],
            **measured,
            "updates": counts["updates"][clients],
            "quarantined": [reasons.get(client, "") for client in numbers],
        }
