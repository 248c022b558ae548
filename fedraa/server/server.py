"""What the loop asks of any server, synchronous or not."""

from collections.abc import Iterable
from typing import Protocol

from fedraa.ledger.task_ledger import TaskLedger
from fedraa.messages import State, Task, Update, Vector
from fedraa.server.tasks import TaskTable


class Server(Protocol):
    """A state machine without an engine: the loop tells it what happened and asks what is next.

    A server update is a commit of an asynchronous server, a round of a synchronous one.
    """

    @property
    def step(self) -> int:
        """Server updates so far."""

    @property
    def ledger(self) -> TaskLedger:
        """Its decisions."""

    @property
    def task_table(self) -> TaskTable:
        """The tasks in flight with their buffers."""

    @property
    def params(self) -> Vector:
        """The full model [d] as it stands."""

    def begin(self) -> Iterable[int]:
        """The clients that wait for work at the start."""

    def assign(self, client: int, now: float) -> Task:
        """The next task of a waiting client; recorded as `dispatch`."""

    def commit(self, update: Update, now: float) -> Iterable[int]:
        """Takes an update in, recorded as `commit`; returns the clients that now wait for work."""

    def drop(self, task: int, what: str, now: float) -> Iterable[int]:
        """The task came to nothing by its client's fault, recorded as `drop`; returns the clients that now wait."""

    def state(self) -> State:
        """All that it has become since its construction, between two of the calls above."""

    def restore(self, state: State) -> None:
        """Become that."""
