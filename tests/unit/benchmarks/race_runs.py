"""Invented results of a race, for tests of its numbers and pages."""

import math
from pathlib import Path

import pandas as pd

from benchmarks.studies.race.measures import Measured
from benchmarks.studies.race.settings import SETTINGS

A = SETTINGS["A"]


def make_run(entrant: str, seed: int, last: float, part: str = "tuned", accuracy: float = 0.975) -> Measured:
    """Return a run that reached its last target at the time `last`, or never. MB and GFLOP are ten times the time."""
    at = [(0.0, 0.1), *((last / by, level) for by, level in zip((2, 1.5, 1), A.targets, strict=True))]
    rows = [(t, level, 1e7 * t, 1e10 * t) for t, level in at if math.isfinite(t)]
    spent = pd.DataFrame(rows, columns=["t", "accuracy", "bytes", "flops"])
    described = {"method": entrant, "time": A.horizon}
    return Measured(entrant, part, seed, "abc", described, described, accuracy - 0.01, spent, A.targets)


def runs_of(entrant: str, *lasts: float, part: str = "tuned") -> list[Measured]:
    """Return a run of the entrant for each time in `lasts`. The seeds are 0, 1, 2, ..."""
    return [make_run(entrant, seed, last, part) for seed, last in enumerate(lasts)]


def table_lines(folder: Path, part: str) -> list[str]:
    """Return the lines of a part in the folder's table."""
    return [line for line in (folder / "race_digits.csv").read_text().splitlines() if line.startswith(part)]
