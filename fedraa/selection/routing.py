"""Routing: draw fast clients with a higher probability, and limit the mean staleness of updates."""

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from fedraa.errors import InputError
from fedraa.ledger.participation import PARTICIPATION, CountedSelection
from fedraa.ledger.selection_context import SelectionContext
from fedraa.messages import Floats
from fedraa.numbers import Positive, Share

BISECTIONS = 40


@PARTICIPATION.register("routing")
@dataclass
class Routing(CountedSelection):
    """A random choice of clients (Generalized AsyncSGD). The probability p_i is proportional to a power of the speed.

    The exponent of this power is at most 1. It is the largest exponent with two properties: every p_i is at least
    min_share / N, and every mean staleness is at most `max_staleness`. With the exponent 1, all queues are equally
    long, and the server receives the most updates. With the exponent 0, all clients have the same probability.

    An asynchronous server keeps `concurrency` tasks at the clients. Without this option, it keeps as many tasks as
    there are clients. When a task ends, the server draws a client for a new task from all clients. The task waits while
    this client trains another task or is not available. The client receives the model when it starts the task. In the
    paper, the server sends the model when it draws the client, so the staleness is higher. In rounds, the clients are
    drawn without replacement.

    A trace of availability must repeat (`availability_period`). After the end of a trace that does not
    repeat, a device may never be available again.

    The papers choose p_i by gradient descent on a bound. fedraa uses powers of the speed instead.

    Attributes:
        min_share: Smallest p_i, multiplied by N. The step of generalized-asyncsgd for a slow client is at most
            1 / min_share times the usual step.
        max_staleness: Largest mean staleness of a client. It is computed for exponential durations, and for tasks that
            receive the model at the draw. None sets no limit.
    """

    min_share: Share = 0.2
    max_staleness: Positive | None = None

    state_fields: ClassVar[tuple[str, ...]] = ()

    def choose(self, view: SelectionContext, rng: np.random.Generator) -> list[int]:
        weights = self.find_probabilities(view.durations, view.count)[view.candidates]
        drawn: list[int] = rng.choice(view.candidates, view.count, replace=False, p=weights / weights.sum()).tolist()
        return drawn

    def find_probabilities(self, durations: Floats, tasks: int) -> Floats:
        """Return the probability of each client [N].

        Args:
            durations: Duration of a task of each client [N].
            tasks: Number of tasks that the clients have at the same time, all together.

        Raises:
            InputError: The mean staleness exceeds `max_staleness` even with equal probabilities.
        """
        rates = durations.min() / durations
        low, high = 0.0, 1.0
        if self._is_allowed(rates**high, rates, tasks):
            low = high
        elif not self._is_allowed(rates**low, rates, tasks):
            problem = "the mean staleness of a client is higher even with equal probabilities"
            hint = "give a larger value, or a smaller concurrency"
            raise InputError("next_client.max_staleness", problem, got=self.max_staleness, hint=hint)
        for _ in range(BISECTIONS):
            middle = (low + high) / 2
            if self._is_allowed(rates**middle, rates, tasks):
                low = middle
            else:
                high = middle
        weights = rates**low
        return np.asarray(weights / weights.sum())

    def _is_allowed(self, weights: Floats, rates: Floats, tasks: int) -> bool:
        """Return True if probabilities proportional to the weights satisfy `min_share` and `max_staleness`."""
        probabilities = weights / weights.sum()
        # Equal probabilities always satisfy `min_share`, but rounding may make 1 / N * N smaller than 1.
        is_equal = weights.min() == weights.max()
        if not is_equal and probabilities.min() * len(weights) < self.min_share:
            return False
        if self.max_staleness is None:
            return True
        _, staleness = analyze_queues(probabilities, rates, tasks)
        return float(staleness.max()) <= self.max_staleness


def analyze_queues(probabilities: Floats, rates: Floats, tasks: int) -> tuple[float, Floats]:
    """Return the number of updates per unit of time, and the mean staleness of each client's updates [N].

    The clients form a closed network of queues with exponential durations. The method is mean value analysis (Reiser,
    Lavenberg 1980): when a task arrives at a queue, the mean length of the queue is its mean length in a network with
    one task less. The mean staleness of a client is this length, divided by the client's probability.

    Args:
        probabilities: The probability with which a task goes to each client [N].
        rates: Number of tasks that each client finishes per unit of time while it trains [N].
        tasks: Number of tasks that the clients have at the same time, all together.
    """
    queues = before = np.zeros(len(rates))
    throughput = 0.0
    for count in range(1, tasks + 1):
        before = queues
        waits = (1 + queues) / rates
        throughput = float(count / (probabilities @ waits))
        queues = throughput * probabilities * waits
    return throughput, before / probabilities
