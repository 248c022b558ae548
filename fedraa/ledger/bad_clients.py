"""Retry and quarantine of clients whose tasks fail, and the maximum number of tasks per client."""

from typing import ClassVar

from fedraa.components.state import Stateful

RETRY = "retry"
QUARANTINED = "quarantined"
STOP = "stop"
# If at least this number of clients fail before any succeeds, the shared setup is wrong, not the clients.
MAX_FIRST_FAILURES = 50


class BadClients(Stateful):
    """The decision about a client after a failed task: retry, quarantine, or stop of the run.

    A retry is a new task with the current model and other minibatches. A client that fails without a retry left is
    quarantined: it gets no more tasks. The run is `hopeless` if `MAX_FIRST_FAILURES` clients have failed and none has
    succeeded.

    Args:
        retries: The maximum number of retries between two applied updates of a client.
        stop: True to stop the run when a client is quarantined.
        needed: The run stops if this client is quarantined. None if there is no such client.
        max_tasks: The maximum number of tasks of a client; None for no maximum.
    """

    state_fields: ClassVar[tuple[str, ...]] = ("left_out", "excluded", "_failures", "_any_well")

    def __init__(
        self, retries: int = 1, *, stop: bool = False, needed: int | None = None, max_tasks: int | None = None
    ) -> None:
        self.retries = retries
        self.stop = stop
        self.needed = needed
        self.left_out: set[int] = set()
        """The quarantined clients."""
        self.excluded: set[int] = set()
        """The clients that get no more tasks: quarantined ones, and those with their maximum number of tasks."""
        self._max_tasks = max_tasks
        self._failures: dict[int, int] = {}
        self._any_well = False

    @property
    def hopeless(self) -> bool:
        return not self._any_well and len(self._failures) >= MAX_FIRST_FAILURES

    def all_failed(self, tried: int) -> bool:
        """Return True if the `tried` clients that have received a task have all failed, and none has succeeded."""
        return not self._any_well and len(self._failures) == tried > 0

    @property
    def stopped(self) -> bool:
        """True if the quarantine of a client stops the run."""
        return bool(self.left_out) and (self.stop or self.needed in self.left_out)

    def count_tasks(self, client: int, tasks: int) -> None:
        """Exclude a client from further tasks if it has received the maximum number of tasks."""
        if tasks == self._max_tasks:
            self.excluded.add(client)

    def count_failure(self, client: int) -> str:
        """Count a failed task. Return RETRY, QUARANTINED or STOP."""
        failures = self._failures[client] = self._failures.get(client, 0) + 1
        if failures <= self.retries:
            return RETRY
        self.left_out.add(client)
        self.excluded.add(client)
        if self.stop or client == self.needed:
            return STOP
        return QUARANTINED

    def count_success(self, client: int) -> None:
        """Count an applied update. The client then has all of its retries again."""
        self._failures.pop(client, None)
        self._any_well = True
