"""Oort: choose fast clients with a high loss (Lai et al. 2021, as in the code of the authors).

Observed for client i: stat_i = n_i * loss_i, its duration t_i, and the step L_i of its last update
    T = duration at the percentile `percentile` of all known durations
    score_i = (min(stat_i, clip) - 0.999 min) / (max - 0.999 min) + sqrt(0.1 ln R / L_i)     # R, L_i from 1
    score_i *= (T / t_i)^penalty  if t_i > T
Exploit, m1 = (1 - eps) * m clients: draw by score from a pool of the best clients. The pool has all clients with at
    least cut_off times the (m1 + 1)-th highest score, and at least 10 m1 clients
Explore, eps * m clients: draw from the clients that never trained, by n_i with the same penalty
eps = max(min_exploration, exploration * decay^step)
Pacer, every `window` choices: U = sum of the mean stat of the exploited clients
    change of U <= 10 %:    percentile += pace
    change of U >= 500 %:   percentile -= pace

The paper computes stat_i from the squared loss of each sample. In fedraa, a client sends only its mean loss. If the
losses of its samples differ, stat_i is too small.

Read next: ledger/participation.py (the interface), ledger/selection_context.py (the observations).
"""

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from fedraa.ledger.participation import PARTICIPATION, CountedSelection
from fedraa.ledger.selection_context import Ints, SelectionContext
from fedraa.messages import Floats
from fedraa.numbers import Count, NotNegative, Positive, Share, UpToOne

# The pacer compares the utility of the last window with that of the window before. It raises the percentile if the
# change is at most this fraction of the earlier utility.
FLAT_CHANGE = 0.1
# The pacer lowers the percentile if the change is at least this multiple of the earlier utility.
SHARP_CHANGE = 5.0
# The pool has at least this number of clients for each client that is drawn from it.
POOL_FACTOR = 10
UNCERTAINTY = 0.1


def score_clients(
    stats: Floats, durations: Floats, last: Ints, *, step: int, preferred: float, penalty: float, clip: float = 1.0
) -> Floats:
    """Return the score of each client [n] that has trained, as in the code of the authors.

    Args:
        stats: The statistical utility of each client [n].
        durations: The duration of each client's task [n].
        last: The step of each client's last update [n], from 1.
        step: The current step R, from 1.
        preferred: The duration T. A longer duration reduces the score of a client.
        penalty: The exponent of the penalty.
        clip: The order of a quantile, such as 0.95. A utility above this quantile is replaced by the quantile.
    """
    ordered = np.sort(stats)
    least = 0.999 * ordered[0]
    spread = max(ordered[-1] - least, 1e-4)
    limit = ordered[min(int(len(ordered) * clip), len(ordered) - 1)]
    scores = (np.minimum(stats, limit) - least) / spread + np.sqrt(UNCERTAINTY * np.log(step) / last)
    return np.asarray(scores * penalise(durations, preferred, penalty))


def penalise(durations: Floats, preferred: float, penalty: float) -> Floats:
    """Return each client's penalty factor [n]: 1 for durations t up to `preferred` (T), otherwise (T / t)^penalty."""
    factors = np.ones(len(durations))
    slow = durations > preferred
    factors[slow] = (preferred / durations[slow]) ** penalty
    return factors


def draw_by_score(pool: Ints, scores: Floats, count: int, rng: np.random.Generator) -> list[int]:
    """Draw `count` clients from the pool [n] without replacement. Probabilities are proportional to scores [n]."""
    if count == 0:
        return []
    positive = np.maximum(scores, 1e-12)
    drawn: list[int] = rng.choice(pool, count, replace=False, p=positive / positive.sum()).tolist()
    return drawn


@PARTICIPATION.register("oort")
@dataclass
class Oort(CountedSelection):
    """A choice of fast clients with a high loss, and of some clients that never trained (Lai et al. 2021).

    An asynchronous method chooses one client at a time. With probability eps, it chooses a client that never trained.

    Attributes:
        exploration: The value of eps in the first round. This fraction of the chosen clients never trained before.
        decay: Each server step multiplies eps by this factor.
        min_exploration: The smallest eps.
        penalty: The exponent of the penalty for slow clients.
        percentile: A client is slow if its duration is above this percentile of the known durations, 0 to 100.
        pace: The amount by which the pacer changes the percentile.
        window: Number of rounds between two changes of the percentile.
        cut_off: A factor from 0 to 1. If m1 clients are drawn by score, the pool has all clients with at least this
            factor times the (m1 + 1)-th highest score.
        clip: The order of a quantile, 0 to 1. A utility above this quantile is replaced by the quantile.
        max_participations: A client with more updates is not chosen again. At most 30 % of the clients are excluded
            in this way. None sets no limit.
    """

    exploration: UpToOne = 0.9
    decay: UpToOne = 0.98
    min_exploration: UpToOne = 0.2
    penalty: NotNegative = 2.0
    percentile: Positive = 10.0
    pace: Positive = 5.0
    window: Count = 20
    cut_off: UpToOne = 0.95
    clip: Share = 0.95
    max_participations: Count | None = None

    state_fields: ClassVar[tuple[str, ...]] = ("_threshold", "_utilities", "_exploited", "_exploited_before")

    def __post_init__(self) -> None:
        self._threshold = self.percentile
        # The mean utility of the clients that were chosen by score, for each of the last 2 * `window` choices.
        self._utilities: list[float] = []
        # The clients that were last chosen by score, and the number of updates of each client before this choice.
        self._exploited: list[int] = []
        self._exploited_before: list[int] = []

    def choose(self, view: SelectionContext, rng: np.random.Generator) -> list[int]:
        tried = view.participations > 0
        stats = np.where(tried, view.samples * np.where(tried, view.losses, 0.0), 0.0)
        self._pace(view, stats)
        candidates = self._without_frequent(view)
        preferred = self._preferred_duration(view.durations)
        explored = candidates[tried[candidates]]
        unseen = candidates[~tried[candidates]]
        count = min(view.count, len(candidates))
        exploit = _round_at_random(count * (1 - self.exploration_at(view.step)), rng)
        # If too few clients have never trained, more clients are chosen by score. If too few clients have trained,
        # fewer clients are chosen by score.
        exploit = min(max(exploit, count - len(unseen)), len(explored), count)
        exploited: list[int] = []
        if exploit:
            scores = score_clients(
                stats[explored],
                view.durations[explored],
                view.last_steps[explored] + 1,
                step=view.step + 1,
                preferred=preferred,
                penalty=self.penalty,
                clip=self.clip,
            )
            exploited = self._exploit(explored, scores, exploit, rng)
        weights = view.samples[unseen] * penalise(view.durations[unseen], preferred, self.penalty)
        new = draw_by_score(unseen, weights, count - len(exploited), rng)
        self._exploited = exploited
        self._exploited_before = view.participations[exploited].tolist()
        return exploited + new

    def exploration_at(self, step: int) -> float:
        """Return eps, the fraction of the chosen clients that never trained, after `step` server steps."""
        return max(self.min_exploration, self.exploration * self.decay**step)

    def _exploit(self, explored: Ints, scores: Floats, count: int, rng: np.random.Generator) -> list[int]:
        order = np.argsort(-scores, kind="stable")
        limit = scores[order[min(count, len(order) - 1)]] * self.cut_off
        near = int((scores >= limit).sum())
        pool = order[: max(near, min(POOL_FACTOR * count, len(order)))]
        return draw_by_score(explored[pool], scores[pool], count, rng)

    def _preferred_duration(self, durations: Floats) -> float:
        """Return T, the current percentile of the known durations. At percentile 100, T is infinite."""
        if self._threshold >= 100:
            return float("inf")
        known = np.sort(durations)
        return float(known[min(int(len(known) * self._threshold / 100), len(known) - 1)])

    def _without_frequent(self, view: SelectionContext) -> Ints:
        """Return the candidates without those that exceed `max_participations`."""
        if self.max_participations is None:
            return view.candidates
        trained = view.participations[view.candidates]
        frequent = view.candidates[np.argsort(-trained, kind="stable")][: (trained > self.max_participations).sum()]
        allowed = min(3 * len(view.samples) // 10, len(view.candidates) - view.count)
        return np.setdiff1d(view.candidates, frequent[: max(0, allowed)])

    def _pace(self, view: SelectionContext, stats: Floats) -> None:
        """Record the utility of the clients that were last chosen by score.

        The percentile is adapted after every `window` choices.
        """
        pairs = zip(self._exploited, self._exploited_before, strict=True)
        answered = [client for client, before in pairs if view.participations[client] > before]
        self._utilities.append(float(stats[answered].mean()) if answered else 0.0)
        if len(self._utilities) < 2 * self.window:
            return
        last = sum(self._utilities[: self.window])
        change = abs(sum(self._utilities[self.window :]) - last)
        if change <= FLAT_CHANGE * last:
            self._threshold = min(100.0, self._threshold + self.pace)
        elif change >= SHARP_CHANGE * last:
            self._threshold = max(self.pace, self._threshold - self.pace)
        del self._utilities[: self.window]


def _round_at_random(value: float, rng: np.random.Generator) -> int:
    """Round a value up or down at random. The probability of rounding up is its fractional part."""
    whole = int(value)
    return whole + int(rng.random() < value - whole)
