"""The settings that the throughput benchmark refuses before it begins."""

from pathlib import Path
from typing import Any

import pytest
from refusals import refuses

from benchmarks.system.throughput import main


@pytest.mark.parametrize(
    ("arguments", "field", "names"),
    [
        ({"clients": (10, 0)}, "clients", ["at least 1"]),
        ({"clients": (10,), "samples": 5}, "clients", ["got 10", "5"]),
        ({"models": ("mnist", "tiny")}, "models", ["'tiny'", "small", "mnist", "large", "widest"]),
        ({"repeats": 0}, "repeats", ["got 0"]),
        ({"out": Path("nowhere/out.json")}, "out", ["nowhere"]),
    ],
)
def test_settings_that_cannot_be_measured_are_refused(arguments: dict[str, Any], field: str, names: list[str]) -> None:
    with refuses(field, *names):
        main(**arguments)
