"""Clients whose work comes to nothing: how often in a row, and which are left out from then on."""

from fedraa.messages import State

RETRY, QUARANTINED, STOP = "retry", "quarantined", "stop"
HOPELESS = 50  # clients that fail, each of those that have come to an end, before it is not they who are to blame


class BadClients:
    """Decides what becomes of a client whose task has failed.

    It is given work again as often as `retries` says, in a row: its next task, from the model as it is by then, other
    minibatches, perhaps another fragment. The same task would only fail again. An update that is taken in makes up
    for all. After that it is left out for good or, with `stop`, the run is stopped.

    It is `hopeless` when the first clients have all failed and none has ever done well: what they share is wrong then,
    such as an own loss, and the thousands that may wait need not be tried.
    """

    def __init__(self, retries: int = 1, *, stop: bool = False) -> None:
        self.retries, self.stop = retries, stop
        self.left_out: set[int] = set()
        self._failures: dict[int, int] = {}
        self._any_well = False

    @property
    def hopeless(self) -> bool:
        return not self._any_well and len(self._failures) >= HOPELESS

    def failed(self, client: int) -> str:
        """A task of the client's has failed; what follows: RETRY, QUARANTINED or STOP."""
        failures = self._failures[client] = self._failures.get(client, 0) + 1
        if failures <= self.retries:
            return RETRY
        self.left_out.add(client)
        return STOP if self.stop else QUARANTINED

    def well(self, client: int) -> None:
        """An update of the client's was taken in."""
        self._failures.pop(client, None)
        self._any_well = True

    def state(self) -> State:
        failures = [[client, count] for client, count in self._failures.items()]
        return {"left_out": sorted(self.left_out), "failures": failures, "any_well": self._any_well}

    def restore(self, state: State) -> None:
        self.left_out, self._any_well = set(state["left_out"]), state["any_well"]
        self._failures = dict(map(tuple, state["failures"]))
