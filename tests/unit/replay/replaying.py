"""Small runs of every method, and functions that read and rewrite their logs."""

import json
from pathlib import Path
from typing import Any

from needed_models import needed_model

from fedraa import Experiment
from fedraa.composition.registry import list_methods

METHODS = list_methods()

ASYNCHRONOUS = [name for name, method in METHODS.items() if method.asynchronous]
BUFFERED = [name for name in ASYNCHRONOUS if METHODS[name].path("buffer_size") and METHODS[name].update.per_step > 1]
# Methods that ignore the update of a task in special cases.
WAITING = ("ace", "ringmaster", "ringmaster-lmo", "ringleader")
SYNCHRONOUS = [name for name, method in METHODS.items() if not method.asynchronous]
SMALL = {"engine": "local", "hidden": (20,), "clients": 5, "local_epochs": 1, "quiet": True}
Log = list[dict[str, Any]]


def small(method: str, out: Path, **flags: Any) -> Experiment:
    if method in BUFFERED:
        flags = {"buffer_size": 2, "updates": 20} | flags
    length = {} if "time" in flags else {"updates": 40} if method in ASYNCHRONOUS else {"rounds": 6}
    return Experiment(**(SMALL | needed_model(method) | length | {"method": method, "out": out} | flags))


def read(directory: Path) -> Log:
    return [json.loads(line) for line in (directory / "events.jsonl").read_text().splitlines()]


def write(directory: Path, log: Log) -> None:
    (directory / "events.jsonl").write_text("".join(json.dumps(line) + "\n" for line in log))
