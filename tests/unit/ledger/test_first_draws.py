"""The draw of the first clients and the draw of the next client after task 0 are independent."""

from collections.abc import Callable

import numpy as np
import pytest

from fedraa.ledger.client_selector import ClientSelector
from fedraa.ledger.concurrency import Concurrency
from fedraa.ledger.routed_tasks import RoutedTasks
from fedraa.ledger.selection_context import ClientFacts
from fedraa.selection.simple import Uniform

CLIENTS, RUNS = 10, 1500


def draw_with_concurrency(seed: int) -> tuple[int, int]:
    """Start two clients, and end the task of the first. Return this client and the next one."""
    rule = Concurrency(CLIENTS, 2, seed)
    first, other = rule.first_clients()
    (following,) = rule.next_clients(first, 0, {other})
    return first, following


def draw_with_selector(seed: int) -> tuple[int, int]:
    facts = ClientFacts(np.ones(CLIENTS, np.int64), np.ones(CLIENTS), lambda client, now: now)
    selector = ClientSelector(Uniform(), facts, clients=CLIENTS, seed=seed)
    first, other = selector.choose_first(2)
    (following,) = selector.choose_next(0, step=1, now=1.0, excluded={other})
    return first, following


def draw_with_routing(seed: int) -> tuple[int, int]:
    queues = RoutedTasks(np.full(CLIENTS, 1 / CLIENTS), 1, seed)
    (first,) = queues.first_clients()
    (following,) = queues.next_clients(first, 0, ())
    return first, following


@pytest.mark.parametrize(
    ("draw", "probability"),
    [(draw_with_concurrency, 1 / 9), (draw_with_selector, 1 / 9), (draw_with_routing, 1 / 10)],
)
def test_next_client_after_task_0_is_drawn_uniformly(
    draw: Callable[[int], tuple[int, int]], probability: float
) -> None:
    same = sum(first == following for first, following in map(draw, range(RUNS)))
    deviation = (probability * (1 - probability) / RUNS) ** 0.5
    assert abs(same / RUNS - probability) < 4 * deviation
