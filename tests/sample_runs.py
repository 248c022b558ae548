"""Three small runs for tests that read run directories: one ended, and two were interrupted."""

from pathlib import Path
from threading import Event as Stop
from typing import Any

from fedraa.callbacks import Callback, Event
from fedraa.callbacks.callback_list import CallbackList
from fedraa.config.experiment import Experiment
from fedraa.engine.build import build_run
from fedraa.engine.executor import LocalExecutor
from fedraa.engine.session import RunSession

SMALL: dict[str, Any] = {"clients": 4, "hidden": (16,), "local_epochs": 1, "engine": "local", "quiet": True}


class StopAfter(Callback):
    """A callback that interrupts a run after a number of commits, as Ctrl-C does."""

    def __init__(self, commits: int | None) -> None:
        self.stop = Stop()
        self._commits = commits
        self._seen = 0

    def on_commit(self, event: Event) -> None:
        self._seen += 1
        if self._seen == self._commits:
            self.stop.set()


def write_sample_runs(folder: Path) -> None:
    """Write the runs fed-raa-ended, fed-raa-stopped and scaffold-stopped into a folder."""
    write_run(folder / "fed-raa-ended", method="fed-raa", updates=24, staleness="polynomial")
    write_run(
        folder / "fed-raa-stopped",
        commits=60,
        method="fed-raa",
        updates=200,
        staleness="hinge",
        eval_every=1000,
        checkpoint_every=20,
    )
    write_run(
        folder / "scaffold-stopped",
        commits=100,
        method="scaffold",
        rounds=140,
        eval_every=1000,
        checkpoint_every=20,
    )


def write_run(directory: Path, *, commits: int | None = None, **fields: Any) -> None:
    """Write one run, which is interrupted after `commits`, or never if that is None."""
    directory.mkdir(parents=True)
    spec = build_run(Experiment(**SMALL, **fields, out=directory))
    callback = StopAfter(commits)
    RunSession(spec, directory, LocalExecutor.of(spec), callback.stop, CallbackList([callback])).execute()
