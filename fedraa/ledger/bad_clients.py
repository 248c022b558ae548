"""The policy for clients with failed tasks: retries, quarantine, or the end of the run."""

from typing import ClassVar

from fedraa.components.state import Stateful

RETRY = "retry"
QUARANTINED = "quarantined"
STOP = "stop"
# If this number of clients fail before any succeeds, the cause is the shared setup, not the clients.
MAX_FIRST_FAILURES = 50


class BadClients(Stateful):
    """The decision about a client after a failed task.

    The client is retried up to `retries` times in a row. A retry is its next task, from the current model and with
    other minibatches, because the same task would only fail again. An applied update resets the count. After the
    retries the client is quarantined for good or, with `stop` or if the client is `needed`, the run is stopped.

    The run is `hopeless` if the first clients have all failed and none has succeeded. Then the shared setup is wrong,
    such as a custom loss, and the other clients need not be tried.
    """

    state_fields: ClassVar[tuple[str, ...]] = ("left_out", "_failures", "_any_well")

    def __init__(self, retries: int = 1, *, stop: bool = False, needed: int | None = None) -> None:
        self.retries = retries
        self.stop = stop
        self.needed = needed
        self.left_out: set[int] = set()
        self._failures: dict[int, int] = {}
        self._any_well = False

    @property
    def hopeless(self) -> bool:
        return not self._any_well and len(self._failures) >= MAX_FIRST_FAILURES

    def failed(self, client: int) -> str:
        """Count a failed task of the client. Return the action: RETRY, QUARANTINED or STOP."""
        failures = self._failures[client] = self._failures.get(client, 0) + 1
        if failures <= self.retries:
            return RETRY
        self.left_out.add(client)
        if self.stop or client == self.needed:
            return STOP
        return QUARANTINED

    def well(self, client: int) -> None:
        """Reset the client's failures after an applied update."""
        self._failures.pop(client, None)
        self._any_well = True
