"""The plan of a run knows that a round closes before its slowest client is ready."""

from types import SimpleNamespace
from typing import Any

import pytest

from fedraa.cli.plan_outlook import FirstRound, _round_duration
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
def test_duration_of_a_round(schedule: Rounds, duration: float) -> None:
    spec: Any = SimpleNamespace(method=SimpleNamespace(schedule=schedule), timing=Timing(0, 0.1))
    tasks: Any = [SimpleNamespace(client=client, cost=cost) for client, cost in enumerate(COSTS)]
    assert _round_duration(spec, FirstRound(tasks, total=4, down=[], energies=[])) == duration
