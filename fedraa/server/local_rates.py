"""Local learning rates of tasks: a schedule, and a factor that may adapt during the run."""

import math
from bisect import bisect_left, insort
from collections import deque
from collections.abc import Callable
from typing import Any, ClassVar

import numpy as np

from fedraa.client.lr_schedule import lr_unit, mean_local_factor, run_factor, target_cosine
from fedraa.components.state import Stateful
from fedraa.messages import Update

# The learning rate stays within this factor of its initial value.
MAX_FACTOR = 1e4
# Until the losses have fallen by the share RISE, the learning rate is at most this multiple of its initial value. If
# only the biases of a model learn at first, the cosines are high and the losses stay the same. The rate would otherwise
# grow until the model is destroyed.
MAX_EARLY_FACTOR = 8
# A client's loss has risen if it exceeds the client's lowest loss by this share of the client's first loss.
RISE = 0.1
# A client is recent if it sent one of the last RECENT * N updates. N is the number of clients that train at a time.
RECENT = 5
# After a fall, the rate is at least 1 / LARGEST_FALL of the rate at which the losses were lowest. Otherwise noise would
# let a small rate fall again and again.
LARGEST_FALL = 4
# After a fall, the rate is at least 1 / LARGEST_DECREASE of the highest rate at which the losses were lower than ever
# before. Otherwise noisy losses could reduce the rate until training almost stops.
LARGEST_DECREASE = 16
# After the k-th fall of the rate without a new lowest loss, its logarithm grows by at most CAUTIOUS_GROWTH / k per N
# updates. So the rate stays near a value at which it does not fall, and a long run ends with a stable model.
CAUTIOUS_GROWTH = 0.1


class RunningMedian(Stateful):
    """The median of the last values. A new value is inserted into a sorted list, which is faster than sorting it again.

    Args:
        size: The number of last values that count.
    """

    state_fields: ClassVar[tuple[str, ...]] = ("_values",)

    def __init__(self, size: int) -> None:
        self._values: deque[float] = deque(maxlen=size)
        self._sorted: list[float] = []

    def add(self, value: float) -> None:
        if self.is_full:
            del self._sorted[bisect_left(self._sorted, self._values[0])]
        self._values.append(value)
        insort(self._sorted, value)

    @property
    def is_full(self) -> bool:
        return len(self._values) == self._values.maxlen

    @property
    def value(self) -> float:
        middle = len(self._sorted) // 2
        if len(self._sorted) % 2:
            return self._sorted[middle]
        return (self._sorted[middle - 1] + self._sorted[middle]) / 2

    def restore(self, state: dict[str, Any]) -> None:
        super().restore(state)
        self._sorted = sorted(self._values)


class AdaptiveFactor(Stateful):
    """A factor of the learning rate that adapts to the clients' updates.

    After each client update, with the median c of the last N cosines (`HalfwayCosine`):
        factor <- factor * exp((c - target) / N)
    If the losses have risen in most of the last N updates, and for most of the recent clients:
        factor <- half of the smaller of factor and b, but at least b / 4 and h / 16
    b is the factor at which the losses were lowest, and h the highest such factor since the start. The factor is at
    most 8 until the median of the last N losses, each divided by its client's first loss, has been below 0.9.

    N is the number of clients that train at the same time. The cosine decreases as the rate grows. So the rule is
    similar to hypergradient descent (Baydin et al. 2018) on the logarithm of the rate. That method compares two
    consecutive gradients. This rule compares the two halves of a task.

    If clients have different labels, the cosine may be high although the model does not improve. The losses then limit
    the rate. A loss has risen if it exceeds the client's lowest loss by a tenth of its first loss (`RISE`). Only losses
    since the last fall of the rate count. A client is recent if it sent one of the last 5 N updates (`RECENT`). With
    each fall the rate grows more slowly, until the median loss is lower than ever before (`CAUTIOUS_GROWTH`).

    Args:
        target: The cosine at which the rate stays constant.
        at_work: N.
        clients: Number of clients.
    """

    state_fields: ClassVar[tuple[str, ...]] = (
        "_log_factor",
        "_cosines",
        "_relative_losses",
        "_rises",
        "_updates",
        "_recent",
        "_updates_risen",
        "_clients_risen",
        "_first",
        "_lowest",
        "_best_loss",
        "_best_log_factor",
        "_highest_log_factor",
        "_falls",
    )

    def __init__(self, target: float, at_work: int, clients: int) -> None:
        self._target = target
        self._at_work = at_work
        self._log_factor = 0.0
        self._cosines = RunningMedian(at_work)
        # The last losses, each divided by its client's first loss.
        self._relative_losses = RunningMedian(at_work)
        # For each of the last N updates, except those before the last fall of the rate: 1 if the update's loss has
        # risen, otherwise 0.
        self._rises: deque[int] = deque(maxlen=at_work)
        self._updates = 0
        # For each recent client: the number of its last update (from 1 in the run), and 1 if this update's loss has
        # risen, otherwise 0. The client with the oldest update is first.
        self._recent: dict[int, list[int]] = {}
        # The number of ones in `_rises`, and the number of ones in `_recent`.
        self._updates_risen = 0
        self._clients_risen = 0
        # The first loss of each client; NaN before its first update.
        self._first = np.full(clients, np.nan)
        # The lowest loss of each client since the last fall of the rate; NaN for a client without an update since then.
        self._lowest = np.full(clients, np.nan)
        # The lowest median of the relative losses so far, and the logarithm of the factor at that time.
        self._best_loss = math.inf
        self._best_log_factor = 0.0
        # The highest value of `_best_log_factor` so far.
        self._highest_log_factor = -math.inf
        # The number of falls since the losses were lowest; at least 1 after the first fall.
        self._falls = 0

    @property
    def value(self) -> float:
        return math.exp(self._log_factor)

    def receive(self, client: int, cosine: float | None, loss: float) -> None:
        """Adapt the factor to a client update. An update without a cosine changes nothing."""
        if cosine is None or not math.isfinite(cosine):
            return
        self._cosines.add(cosine)
        self._record_loss(client, loss)
        if self._updates_risen > self._at_work / 2 and self._clients_risen > len(self._recent) / 2:
            self._falls += 1
            self._rises.clear()
            self._recent = {other: [number, 0] for other, (number, _) in self._recent.items()}
            self._updates_risen = self._clients_risen = 0
            self._lowest[:] = np.nan
            fallen = min(self._log_factor, self._best_log_factor) - math.log(2)
            self._log_factor = max(
                fallen,
                self._best_log_factor - math.log(LARGEST_FALL),
                self._highest_log_factor - math.log(LARGEST_DECREASE),
            )
            return
        change = self._cosines.value - self._target
        if self._falls:
            change = min(change, CAUTIOUS_GROWTH / self._falls)
        lowest = -math.log(MAX_FACTOR)
        highest = math.log(MAX_EARLY_FACTOR if self._best_loss > 1 - RISE else MAX_FACTOR)
        self._log_factor = min(highest, max(lowest, self._log_factor + change / self._at_work))

    def _record_loss(self, client: int, loss: float) -> None:
        """Record a loss. Also record the current factor if the median loss is the lowest so far."""
        if math.isnan(self._first[client]):
            self._first[client] = loss
        if math.isnan(self._lowest[client]):
            self._lowest[client] = loss
        self._lowest[client] = lowest = min(self._lowest[client], loss)
        first = abs(float(self._first[client]))
        has_risen = int(loss > lowest + RISE * first)
        self._record_rise(client, has_risen)
        self._relative_losses.add(loss / (first or 1.0))
        if not self._relative_losses.is_full:
            return
        current = self._relative_losses.value
        if current < self._best_loss:
            self._best_loss = current
            self._best_log_factor = self._log_factor
            self._highest_log_factor = max(self._highest_log_factor, self._log_factor)
            # The model has improved since the earlier falls, so they no longer slow down the growth of the rate.
            self._falls = min(self._falls, 1)

    def _record_rise(self, client: int, has_risen: int) -> None:
        """Record whether the loss of a client's last update has risen, and forget clients that are not recent."""
        if len(self._rises) == self._at_work:
            self._updates_risen -= self._rises[0]
        self._rises.append(has_risen)
        self._updates_risen += has_risen
        self._updates += 1
        oldest = self._updates - RECENT * self._at_work
        expired = [client] if client in self._recent else []
        for other, (number, _) in self._recent.items():
            if number > oldest:
                break
            if other != client:
                expired.append(other)
        for other in expired:
            self._clients_risen -= self._recent.pop(other)[1]
        self._recent[client] = [self._updates, has_risen]
        self._clients_risen += has_risen


class LocalRates(Stateful):
    """The learning rates of tasks.

    Args:
        schedule: The text of the schedule.
        base: A function of a submodel's widths. It returns the rate at the start of the run.
        at_work: Number of clients that train at the same time.
        clients: Number of clients.
    """

    state_fields: ClassVar[tuple[str, ...]] = ("_adaptive",)

    def __init__(self, schedule: str, base: Callable[[tuple[int, ...]], float], at_work: int, clients: int) -> None:
        self.unit = lr_unit(schedule)
        """The unit of the progress on which the schedule depends: server `steps`, `time`, `passes` or `local` steps."""
        self._schedule = schedule
        self._base = base
        self._factor = run_factor(schedule)
        target = target_cosine(schedule)
        self.is_adaptive = target is not None
        self._adaptive = AdaptiveFactor(target or 0.0, at_work, clients if self.is_adaptive else 0)

    def rate(self, progress: float, widths: tuple[int, ...]) -> float:
        """Return the learning rate of a task.

        Args:
            progress: The progress of the run, in the unit that the attribute `unit` names, such as server steps.
            widths: The widths of the submodel.
        """
        return self._base(widths) * self._factor(progress) * self._adaptive.value

    def mean_factor(self, steps: int) -> float:
        """Return the schedule's mean factor over this number of local steps."""
        return mean_local_factor(self._schedule, steps)

    def receive(self, update: Update) -> None:
        """Adapt the learning rate to a client update if the schedule is adaptive."""
        if self.is_adaptive:
            self._adaptive.receive(update.client, update.cosine, update.loss)
