"""Where a run's real time went: what the server did with it, and what the workers did."""

import json
import time
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

PROFILE = "profile.json"
SERVER = {
    "wait": "waiting for the next update",
    "dispatch": "choosing and sending tasks",
    "mix": "checking updates, taking them in, logging",
    "evaluate": "waiting for an evaluation before the next",
    "save": "checkpoints",
}
WORKERS = {"train": "training", "evaluate": "evaluating"}


class Stopwatch:
    """Adds up real seconds by what they are spent on."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = defaultdict(float)

    @contextmanager
    def on(self, what: str) -> Iterator[None]:
        started = time.perf_counter()
        try:
            yield
        finally:
            self.seconds[what] += time.perf_counter() - started


def profile(directory: Path) -> list[tuple[str, str, float, float]]:
    """Rows (who, what, seconds, share of that one's time) of a run that has ended; the rest of each is `other`.

    A worker's other time is idle, transfer, and its start. With the engine `local` the server's waiting is training.
    """
    path = directory / PROFILE
    if not path.is_file():
        raise ValueError(f"run: {directory} has no {PROFILE}; the run has not ended, or is not a run")
    measured: dict[str, Any] = json.loads(path.read_text())
    rows = []
    for who, names, whole in (
        ("server", SERVER, measured["wall"]),
        ("workers", WORKERS, measured["wall"] * measured["count"]),
    ):
        spent = {said: measured[who].get(what, 0.0) for what, said in names.items()}
        spent["other"] = max(0.0, whole - sum(spent.values()))
        rows += [(who, said, seconds, seconds / whole) for said, seconds in spent.items()]
    return rows
