"""Data against speed as the costs of tasks foretell it; apart from the rules, for shards go without cost models."""

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from fedraa.devices.costs import CostModel, Widths
from fedraa.server.participation_correction import Floats, balances

BISECTIONS = 40


def planned_balances(
    costs: CostModel,
    shapes: Sequence[Widths],
    samples: npt.NDArray[np.int64],
    power: float,
    at_a_time: int | None = None,
) -> Floats:
    """c_n [N] of clients of so many `samples` [N], by what tasks on these shapes cost, as is known now.

    It is that of all clients as the run began, also when some of them have been left out since.
    """
    if power == 0:
        return np.ones(len(samples))
    table = costs.table(shapes)
    return balances(samples, costs.rates(shapes, table + pause(table, at_a_time)), power)


def pause(table: Floats, at_a_time: int | None) -> float:
    """How long a client waits between two of its tasks, which cost `table` [N, M], where so many train at a time.

    The same for all, for who is next is drawn: so long that as many are at work, on average. 0 where all train.
    """
    if at_a_time is None or at_a_time >= len(table):
        return 0.0
    held = np.maximum(1, np.isfinite(table).sum(axis=1))
    known = np.where(np.isfinite(table), table, 0.0)
    low, high = 0.0, len(table) / at_a_time * float(known.max())
    for _ in range(BISECTIONS):
        middle = (low + high) / 2
        busy = np.divide(known, known + middle, out=np.zeros_like(known), where=known > 0).sum(axis=1) / held
        low, high = (middle, high) if busy.sum() > at_a_time else (low, middle)
    return high
