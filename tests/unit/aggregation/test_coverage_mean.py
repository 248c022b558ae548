"""The means of deltas keep nothing of a round that has ended."""

import numpy as np
import pytest

from fedraa.aggregation.aggregator import ClientDelta, RoundTotals
from fedraa.aggregation.registry import AGGREGATOR
from fedraa.components.state import save_state
from fedraa.vectors.delta_view import DeltaView

SIZE = 4


@pytest.mark.parametrize("name", ["covered", "filled", "fednova"])
@pytest.mark.parametrize("indices", [[0, 1, 2, 3], [1, 3]], ids=["one-range", "single-coordinates"])
def test_aggregator_after_a_round_has_the_state_of_a_new_one(name: str, indices: list[int]) -> None:
    aggregator = AGGREGATOR.resolve(name).bind(SIZE, 2)
    new = save_state(aggregator)
    counts = np.zeros(SIZE, np.int32)
    for client in range(2):
        counts[indices] += 1
        view = DeltaView(np.array(indices), np.ones(len(indices), np.float32))
        aggregator.add(ClientDelta(client, view, 3.0, 0.1))
    aggregator.finish(RoundTotals(counts, 0.1))
    np.testing.assert_equal(save_state(aggregator), new)
