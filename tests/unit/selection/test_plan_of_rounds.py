"""The plan of a run closes a round at its deadline, or when enough clients have sent their updates."""

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from fedraa.cli.plan_rounds import _close_time
from fedraa.cli.plan_tasks import RoundTasks
from fedraa.devices.availability import Timing
from fedraa.server.schedule import Rounds

COSTS = (1.0, 2.0, 4.0, 9.0)


@pytest.mark.parametrize(
    ("schedule", "duration"),
    [
        (Rounds(), 9.0),
        (Rounds(deadline=3.0), 3.0),
        (Rounds(deadline=30.0), 9.0),
        (Rounds(participation="sample:3", over_selection=1.3), 4.0),
        (Rounds(participation="sample:3", over_selection=1.3, deadline=3.0), 3.0),
    ],
)
def test_plan_closes_a_round_at_its_deadline_or_at_the_last_needed_update(schedule: Rounds, duration: float) -> None:
    spec: Any = SimpleNamespace(method=SimpleNamespace(schedule=schedule), timing=Timing(0, 0.0))
    count = len(COSTS)
    clients, zeros = np.arange(count), np.zeros(count)
    drawn = RoundTasks(count, clients, zeros.astype(np.int64), np.array(COSTS), zeros, zeros, zeros)
    assert _close_time(spec, drawn, 1.0) == 1.0 + duration
