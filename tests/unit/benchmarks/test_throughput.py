"""What the throughput benchmark refuses before it begins."""

from pathlib import Path
from typing import Any

import pytest

from benchmarks.system.throughput import main


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        ({"clients": (10, 0)}, "clients: got 0; give numbers from 1 to 60000, the samples"),
        ({"clients": (10,), "samples": 5}, "clients: got 10; give numbers from 1 to 5, the samples"),
        ({"models": ("mnist", "tiny")}, "models: there is no 'tiny'; choose among small, mnist, large, widest"),
        ({"repeats": 0}, "repeats: got 0; give at least 1"),
        ({"out": Path("nowhere/out.json")}, "out: there is no folder nowhere; make it, or choose another"),
    ],
)
def test_what_cannot_be_measured_is_refused_at_once(arguments: dict[str, Any], sentence: str) -> None:
    with pytest.raises(ValueError, match=f"^{sentence}$"):
        main(**arguments)
