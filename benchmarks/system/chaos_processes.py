"""Trials in which actors of each kind freeze, and in which Ray's own processes die.

The server, a server shard, a worker and a data host are frozen (SIGSTOP) at random times. The raylet or the GCS of a
private cluster is killed, and the run continues on a new cluster. Each run must end with the model and log of the
undisturbed run. Only faults may be added to the log.
"""

import os
import signal
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext, suppress
from functools import partial
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import numpy as np

from actors.cluster import engine
from actors.cluster.own_cluster import own_cluster
from actors.pool.liveness import Heartbeat
from benchmarks.system.chaos_kills import FREEZE, doomed_worker, judge_runs, log_size, run_with_workers
from benchmarks.system.chaos_table import Kind, Tally
from benchmarks.system.processes import list_descendants, process_title
from fedraa.api import resume, run
from fedraa.config.experiment import Experiment
from fedraa.errors import RunFailed
from fedraa.rundir.file_names import SUMMARY

FROZEN: dict[str, dict[str, Any]] = {
    "ParameterServer": {},
    "ShardActor": {"server_shards": 2},
    "Worker": {},
    "DataHost": {"data_on_nodes": True},
}
KILLED = {"GCS": "/gcs/gcs_server", "raylet": "/raylet/raylet"}
# The number of times that a process of each kind is frozen or killed.
PER_KIND = 5
SHORT, START_SECONDS = Heartbeat(every=0.5, bound=3.0), 10.0
POLL_INTERVAL_S = 0.01


def make_experiment(out: Path, engine: str, **changes: Any) -> Experiment:
    """Return a small experiment with 600 client updates and a checkpoint after every 50 updates."""
    common = {"hidden": (8,), "clients": 4, "local_epochs": 1, "updates": 600, "checkpoint_every": 50, "quiet": True}
    return Experiment(engine=engine, out=out, workers={"ray": 1}.get(engine), **common | changes)


class Aim:
    """An object that sends signals to processes of one kind, at random times of a run.

    Attributes:
        hits: The ids of the processes that got a signal.
        seconds: The seconds from each signal until its process was gone.

    Args:
        root: A process id. Only child processes of this process, and their children, get signals.
        name: A part of the titles of the processes that get signals.
        what: The signal.
        stretch: Each further signal is sent after the log has grown by a random number of bytes below `stretch`.
        rng: The generator of these random numbers.
    """

    def __init__(self, root: int, name: str, what: signal.Signals, stretch: int, rng: np.random.Generator) -> None:
        self._root, self._name, self._what = root, name, what
        self._stretch, self._rng = stretch, rng
        self.hits: list[int] = []
        self.seconds: list[float] = []
        self._over = threading.Event()

    @contextmanager
    def at(self, directory: Path, shots: int) -> Iterator[None]:
        """During the `with` block, send signals until `shots` processes got one."""
        self._over.clear()
        shooter = threading.Thread(target=self._send_signals, args=(directory, shots))
        shooter.start()
        try:
            yield
        finally:
            self._over.set()
            shooter.join()

    def _send_signals(self, directory: Path, shots: int) -> None:
        # The first signal is sent as soon as a target process exists.
        enough = 0
        while len(self.hits) < shots and not self._over.wait(POLL_INTERVAL_S):
            targets = self._find_targets()
            if not targets or log_size(directory) < enough:
                continue
            os.kill(targets[-1], self._what)
            hit = time.monotonic()
            self.hits.append(targets[-1])
            while Path("/proc", str(targets[-1])).exists() and not self._over.wait(POLL_INTERVAL_S):
                pass
            self.seconds.append(time.monotonic() - hit)
            enough = log_size(directory) + int(self._rng.integers(1, self._stretch))

    def _find_targets(self) -> list[int]:
        """Return the ids of the target processes, the youngest last."""
        return sorted(pid for pid in list_descendants(self._root) if self._name in process_title(pid).split("(")[0])


def freeze_actors(folder: Path, rng: np.random.Generator, kind: str) -> Tally:
    """Freeze actors of one kind repeatedly.

    Args:
        folder: An empty folder.
        rng: The generator that chooses the times.
        kind: The name of the actor's class.
    """
    undisturbed = run(make_experiment(folder / "undisturbed", "local")).directory
    aim = Aim(os.getpid(), f"ray::{kind}", signal.SIGSTOP, log_size(undisturbed) // PER_KIND, rng)
    runs = list[Path]()
    while len(aim.hits) < PER_KIND:
        runs.append(folder / f"run-{len(runs)}")
        # A run may raise RunFailed after three freezes. It is resumed after the last freeze.
        with aim.at(runs[-1], PER_KIND), suppress(RunFailed):
            run(make_experiment(runs[-1], "ray", **FROZEN[kind]))
        if not (runs[-1] / SUMMARY).exists():
            resume(runs[-1])
    tally = judge_runs(PER_KIND, runs, undisturbed)
    return Tally(PER_KIND, tally.right, tally.lost, tally.doubled, round(max(aim.seconds), 1))


def freeze_first_tasks(folder: Path, rng: np.random.Generator) -> Tally:
    """Freeze a worker in its first task, when the executor does not yet know how long tasks take.

    Args:
        folder: An empty folder.
        rng: Not used. The functions for all kinds of trials take the same arguments.
    """
    undisturbed = run(make_experiment(folder / "undisturbed", "local", updates=60)).directory
    runs = [folder / f"run-{number}" for number in range(PER_KIND)]
    for directory in runs:
        marks = directory.with_suffix(".marks")
        marks.mkdir()
        experiment = make_experiment(directory, "ray", updates=60)
        run_with_workers(experiment, directory, doomed_worker({0: FREEZE}, marks), count=1, heartbeat=SHORT)
    return judge_runs(PER_KIND, runs, undisturbed)


def cluster_kills(folder: Path, rng: np.random.Generator, kind: str) -> Tally:
    """Kill one of Ray's processes repeatedly, and continue the run on a new cluster each time.

    Args:
        folder: An empty folder.
        rng: The generator that chooses the times.
        kind: The process, a key of KILLED.
    """
    undisturbed = run(make_experiment(folder / "undisturbed", "local")).directory
    trial = make_experiment(folder / "run", "ray")
    process = get_context("forkserver").Process(target=run, args=(trial,), kwargs={"restarts": PER_KIND})
    process.start()
    assert process.pid is not None
    aim = Aim(process.pid, KILLED[kind], signal.SIGKILL, log_size(undisturbed) // (PER_KIND + 1), rng)
    with aim.at(folder / "run", PER_KIND):
        process.join()
    if not (folder / "run" / SUMMARY).exists():
        return Tally(PER_KIND, 0)
    return judge_runs(len(aim.hits), [folder / "run"], undisturbed)


@contextmanager
def short_bounds() -> Iterator[None]:
    """Provide a private cluster in which a frozen actor counts as lost after a short time."""
    usual = engine.HEARTBEAT, engine.START_SECONDS
    engine.HEARTBEAT, engine.START_SECONDS = SHORT, START_SECONDS
    try:
        with own_cluster(4):
            yield
    finally:
        engine.HEARTBEAT, engine.START_SECONDS = usual


KINDS = [
    Kind(
        "frozen",
        {kind: partial(freeze_actors, kind=kind) for kind in FROZEN} | {"Worker, first task": freeze_first_tasks},
        short_bounds,
    ),
    Kind("cluster kills", {kind: partial(cluster_kills, kind=kind) for kind in KILLED}, nullcontext),
]
