"""A run without limits ends after twenty rounds, or with a target after a large number of rounds."""

from typing import Any

import pytest

from fedraa import Experiment
from fedraa.engine.build import build_run


@pytest.mark.parametrize(
    ("fields", "steps"),
    [
        ({"method": "fedavg"}, 20),
        ({"method": "fed-raa"}, 20 * 10),
        ({"method": "fedavg", "target_accuracy": 0.93}, 1000),
        ({"method": "fed-raa", "target_accuracy": 0.93}, 1000 * 10),
        ({"method": "fed-raa", "target": "loss:0.1"}, 1000 * 10),
        ({"method": "fed-raa", "target_accuracy": 0.93, "updates": 30}, 30),
        ({"method": "fed-raa", "target_accuracy": 0.93, "time": 2.0}, None),
    ],
)
def test_limit_of_steps_is_the_given_one_or_a_number_of_rounds(fields: dict[str, Any], steps: int | None) -> None:
    spec = build_run(Experiment(clients=10, hidden=(8,), engine="local", quiet=True, **fields))
    assert spec.limits.steps == steps
