"""The client selector of a replay, which reads the choices of clients from the log.

A replay runs no custom code, so it cannot call a custom selection. It also cannot compute costs that depend on a custom
component, and most selections use the costs of tasks.
"""

from collections import defaultdict
from collections.abc import Collection, Sequence
from pathlib import Path

from fedraa.ledger.client_selector import ClientSelector
from fedraa.ledger.participation import All
from fedraa.replay.log_line import read_lines


class LoggedSelector(ClientSelector):
    """A selector that repeats the choices of a log.

    Args:
        directory: The run directory.
        clients: Number of clients.
        needed: The number of updates after which a round ends; None if it waits for all of its clients.
    """

    def __init__(self, directory: Path, clients: int, needed: int | None = None) -> None:
        super().__init__(All(), None, clients=clients, seed=0)
        self.needed = needed
        self._cohorts: list[list[int]] = [[]]
        # Maps the number of an ended task to the clients that got the next tasks.
        self._after: defaultdict[int, list[int]] = defaultdict(list)
        self._first: list[int] = []
        ended: int | None = None
        for line in read_lines(directory):
            match line.kind:
                case "dispatch":
                    client = int(line.between("client", 0, clients - 1))
                    self._cohorts[-1].append(client)
                    if ended is None:
                        self._first.append(client)
                    else:
                        self._after[ended].append(client)
                case "commit" | "drop":
                    ended = int(line.at_least("task", 0))
                case "round":
                    self._cohorts.append([])

    def choose_cohort(self, round: int, now: float, left_out: Collection[int]) -> Sequence[int]:
        if round < len(self._cohorts):
            return self._cohorts[round]
        return ()

    def choose_first(self, count: int) -> Sequence[int]:
        return self._first

    def choose_next(self, task: int, *, step: int, now: float, excluded: Collection[int]) -> Sequence[int]:
        return self._after[task]
