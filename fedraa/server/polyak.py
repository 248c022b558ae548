"""Polyak averaging: evaluating and saving a mean of the last models, which has less noise than one model."""

from collections.abc import Callable, Iterable

from fedraa.ledger.task_ledger import TaskLedger
from fedraa.messages import State, Task, Update, Vector
from fedraa.server.mixing import RunningMean
from fedraa.server.server import Server
from fedraa.server.tasks import TaskTable


class PolyakAveraging:
    """A wrapper around a server. It keeps a running mean of the server's models.

    Clients train the current model. Evaluations use `params`, the mean. After step t (the first is t = 0):
    mean <- mean + (theta - mean) / (share * t + 1).
    With a `share` of 0.1 the mean covers about the last tenth of all steps.
    """

    def __init__(self, server: Server, share: float, mean: RunningMean) -> None:
        self._server = server
        self._share = share
        self._mean = mean

    @property
    def step(self) -> int:
        return self._server.step

    @property
    def ledger(self) -> TaskLedger:
        return self._server.ledger

    @property
    def task_table(self) -> TaskTable:
        return self._server.task_table

    @property
    def params(self) -> Vector:
        return self._mean.params

    @property
    def closes_at(self) -> float:
        return self._server.closes_at

    def close_round(self, now: float) -> Iterable[int]:
        return self._then_update_mean(lambda: self._server.close_round(now))

    def begin(self) -> Iterable[int]:
        return self._server.begin()

    def assign(self, client: int, now: float) -> Task:
        return self._server.assign(client, now)

    def commit(self, update: Update, now: float) -> Iterable[int]:
        return self._then_update_mean(lambda: self._server.commit(update, now))

    def drop(self, task: int, error: str, now: float) -> Iterable[int]:
        # If the round waits only for the dropped task, this call ends the round and changes the model.
        return self._then_update_mean(lambda: self._server.drop(task, error, now))

    def state(self) -> State:
        return self._server.state() | {"mean": self._mean.params}

    def restore(self, state: State) -> None:
        self._server.restore(state)
        self._mean.restore(state["mean"])

    def _then_update_mean(self, call: Callable[[], Iterable[int]]) -> Iterable[int]:
        """Return the result of a call of the server. Update the mean if the server has made a step in the call."""
        before = self._server.step
        waiting = call()
        if self._server.step > before:
            self._mean.follow(1 / (self._share * before + 1))
        return waiting
