"""The real seconds that a run's server and workers spent on each kind of work."""

import time
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated

from pydantic import BaseModel, Field, ValidationError

from fedraa.errors import InputError
from fedraa.messages import State
from fedraa.reading.regular_files import read_regular_file
from fedraa.rundir.config_file import RESTORE

PROFILE = "profile.json"
SERVER = {
    "wait": "waiting for the next update",
    "dispatch": "choosing and sending tasks",
    "mix": "checking updates, applying them, logging",
    "evaluate": "waiting for an earlier evaluation",
    "save": "checkpoints",
}
WORKERS = {"train": "training", "evaluate": "evaluating"}


Seconds = Annotated[float, Field(ge=0, allow_inf_nan=False)]


class ProfileTimes(BaseModel):
    """The real seconds of a run by kind of work.

    Attributes:
        wall: The length of the run.
        count: The number of workers.
        server: The time of the server.
        workers: The time of all workers together.
    """

    wall: Annotated[float, Field(gt=0, allow_inf_nan=False)]
    count: Annotated[int, Field(ge=1)]
    server: dict[str, Seconds]
    workers: dict[str, Seconds]


class Stopwatch:
    """A sum of real seconds for each kind of work."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = defaultdict(float)

    @contextmanager
    def on(self, work: str) -> Iterator[None]:
        """Add the duration of the block to the time of `work`."""
        started = time.perf_counter()
        try:
            yield
        finally:
            self.seconds[work] += time.perf_counter() - started


class RunTimes:
    """The two stopwatches of a run: one for the server, and one for all workers together."""

    def __init__(self) -> None:
        self.server = Stopwatch()
        self.workers = Stopwatch()

    def state(self) -> State:
        return {"server": dict(self.server.seconds), "workers": dict(self.workers.seconds)}

    def restore(self, state: State) -> None:
        self.server.seconds.update(state["server"])
        self.workers.seconds.update(state["workers"])


def read_profile(directory: Path) -> list[tuple[str, str, float, float]]:
    """Return a finished run's real time as rows (server or workers, work, seconds, fraction).

    The work `other` of workers is the time in which they are idle, transfer data, or start. With the engine `local`,
    this process trains the tasks. The training time then counts as the server's `waiting for the next update`.

    Raises InputError if the run has not ended, or if its profile is damaged.
    """
    path = directory / PROFILE
    if not path.is_file():
        raise InputError("run", f"{directory} has no {PROFILE}", hint="give a run that has ended")
    try:
        run = ProfileTimes.model_validate_json(read_regular_file(path))
    except ValidationError as error:
        problem = f"{path} is not a profile: {error.errors()[0]['msg']}"
        raise InputError("run", problem, hint=RESTORE) from None
    rows = []
    for process, kinds, spent, whole in (
        ("server", SERVER, run.server, run.wall),
        ("workers", WORKERS, run.workers, run.wall * run.count),
    ):
        seconds_by_work = {label: spent.get(kind, 0.0) for kind, label in kinds.items()}
        seconds_by_work["other"] = max(0.0, whole - sum(seconds_by_work.values()))
        rows += [(process, label, seconds, seconds / whole) for label, seconds in seconds_by_work.items()]
    return rows
