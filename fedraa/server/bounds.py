"""Bounds on the norm of an update: a number, or `auto`, a multiple of the usual norm."""

from collections import deque
from dataclasses import replace
from statistics import median
from typing import Literal

from fedraa.messages import RemoteBuffer, State, Task, Update
from fedraa.server.update_checks import norms, outgrown, receipt_of, refuse

AUTO = "auto"
# Factor of the bound over the usual norm. Honest updates differ by less, even if data partitions differ tenfold.
MULTIPLE = 20
# Number of accepted updates over which the median runs.
WINDOW = 50
# Number of accepted updates of a fragment before the median is used.
WARM_UP = 5

MaxNorm = float | Literal["auto"] | None


class Bounds:
    """A judge of updates, in the order in which they are applied.

    With `auto`, the norm of an update, ||w - w_received||, may be at most `MULTIPLE` times the median norm of the last
    `WINDOW` accepted updates of its fragment. Until a fragment has `WARM_UP` accepted updates, the bound is `MULTIPLE`
    times max(1, ||sent||). One or two outliers among these first updates do not move the median far.
    """

    def __init__(self, max_norm: MaxNorm = None) -> None:
        self._max_norm = max_norm
        self._seen: dict[int, deque[float]] = {}

    def refuse(self, update: Update, task: Task | None) -> str | None:
        """Return the reason to refuse the update, or None. An accepted update counts in later medians."""
        number = self._max_norm if isinstance(self._max_norm, int | float) else None
        if task is not None and update.receipt is None and not isinstance(task.buffer, RemoteBuffer):
            looked_at = receipt_of(task.params, update.params, norms=self._max_norm is not None)
            # The receipt is computed once, and all later checks use it.
            update = replace(update, receipt=looked_at)
        wrong = refuse(update, task, max_norm=number)
        if wrong is not None or task is None:
            return wrong
        return outgrown(update, task) or (self._unusual(update, task) if self._max_norm == AUTO else None)

    def _unusual(self, update: Update, task: Task) -> str | None:
        seen = self._seen.setdefault(task.fragment, deque(maxlen=WINDOW))
        norm, sent = norms(update, task)
        usual = median(seen) if len(seen) >= WARM_UP else 0.0
        bound = MULTIPLE * (usual or max(1.0, sent))
        if norm > bound:
            what = "the median of its fragment" if usual else "the norm of what was sent"
            return f"the update's norm {norm:.4g} is over {MULTIPLE} times {what}, {bound / MULTIPLE:.4g}"
        seen.append(norm)
        return None

    def state(self) -> State:
        return {"seen": [[fragment, list(norms)] for fragment, norms in self._seen.items()]}

    def restore(self, state: State) -> None:
        self._seen = {fragment: deque(norms, WINDOW) for fragment, norms in state["seen"]}
