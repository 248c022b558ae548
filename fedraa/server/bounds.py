"""How far an update may be from what was sent: a number, or `auto`, a multiple of what is usual."""

from collections import deque
from dataclasses import replace
from statistics import median
from typing import Literal

from fedraa.messages import RemoteBuffer, State, Task, Update
from fedraa.server.update_checks import norms, outgrown, receipt_of, refuse

AUTO = "auto"
MULTIPLE = 20  # of what is usual; updates of honest clients differ by less, though their shards may differ tenfold
WINDOW = 50  # updates over which the median runs
WARM_UP = 5  # updates before there is one

MaxNorm = float | Literal["auto"] | None


class Bounds:
    """Judges updates, in the order in which they are taken in.

    With `auto` the norm of an update, ||w - w_received||, may be `MULTIPLE` times the median of those of the last
    `WINDOW` updates of its fragment that were taken in. What was refused counts for nothing. Of a fragment with fewer
    than `WARM_UP` of them, the very first update among them, it may be `MULTIPLE` times the norm of what was sent, or
    that of 1 if it is smaller: some of these may be odd, for half of the first five do not move a median far.
    """

    def __init__(self, max_norm: MaxNorm = None) -> None:
        self._max_norm = max_norm
        self._seen: dict[int, deque[float]] = {}

    def refuse(self, update: Update, task: Task | None) -> str | None:
        """Why the update must not be taken; None if it may, and then it counts for those that come later."""
        number = self._max_norm if isinstance(self._max_norm, int | float) else None
        if task is not None and update.receipt is None and not isinstance(task.buffer, RemoteBuffer):
            looked_at = receipt_of(task.params, update.params, norms=self._max_norm is not None)
            update = replace(update, receipt=looked_at)  # once, for all that is asked of it
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
