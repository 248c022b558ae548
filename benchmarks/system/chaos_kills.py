"""Trials with killed and frozen processes and truncated files.

Workers, the server actor and the driver are killed (SIGKILL). Workers are also frozen (SIGSTOP). After the death of a
driver, the trial truncates the newest checkpoint or the log, and resumes the run. Each run must end with the model and
log of an undisturbed run. Only lines about faults may be added to the log.
"""

import os
import signal
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, nullcontext, suppress
from functools import partial
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import numpy as np
import ray

from actors.pool.executor import RayExecutor
from actors.worker.worker import Worker
from benchmarks.system.chaos_table import Kind, Tally, Trial, lost_and_doubled
from benchmarks.system.processes import list_descendants, process_title
from fedraa.api import resume, run
from fedraa.client.trainer import Work
from fedraa.composition.registry import list_methods
from fedraa.config.experiment import Experiment
from fedraa.devices.worker_groups import WorkerGroup
from fedraa.engine.build import build_run
from fedraa.engine.hang_detector import HangDetector
from fedraa.engine.session import RunSession
from fedraa.errors import RunFailed
from fedraa.messages import Update
from fedraa.methods.fedbuff import FedBuffRule
from fedraa.rundir.checkpoint import newest_first, read_state
from fedraa.rundir.file_names import CHECKPOINTS, EVENTS, SUMMARY
from fedraa.rundir.history import History

ASYNCHRONOUS = ("fed-raa", "fedasync", "fedbuff", "fed-raa-random")
ROUNDS = ("fed-raa-sync", "fedavg", "scaffold", "ram-fed", "heterofl", "prunefl")
CHOSEN = ASYNCHRONOUS + ROUNDS
# What can happen to a worker. A worker that hangs answers pings and never ends its task.
KILL, FREEZE, HANG = "kill", "freeze", "hang"
SIGNALS = {KILL: signal.SIGKILL, FREEZE: signal.SIGSTOP}
HANG_SECONDS = 3600.0
HUNG_AFTER_S = 10.0
# Mean seconds between two kills at random times.
PAUSE = 2.0
# In one run, workers are killed in DEATHS tasks and frozen in FREEZES tasks.
DEATHS, FREEZES = 18, 2
# The numbers of kills of workers, servers and drivers at random times, and of truncated files (TEARS).
WORKERS_SHOT, SERVERS_SHOT, DRIVERS_SHOT, TEARS = 4, 3, 4, 3


def make_experiment(method: str, out: Path, engine: str, rounds: int = 20) -> Experiment:
    """Return a small experiment with ten checkpoints. The server applies about six client updates per round.

    Args:
        method: The name of the method.
        out: The run directory.
        engine: The engine.
        rounds: The number of rounds. An asynchronous method gets six updates per round.
    """
    update = list_methods()[method].update
    steps = rounds
    if method not in ROUNDS:
        steps = 6 * rounds
    if isinstance(update, FedBuffRule):
        steps //= update.size
    return Experiment(
        method=method,
        engine=engine,
        out=out,
        hidden=(8,),
        clients=6,
        local_steps=2,
        workers={"ray": 2}.get(engine),
        checkpoint_every=max(1, steps // 10),
        **{"rounds" if method in ROUNDS else "updates": steps},
    )


def doomed_worker(disturbances: Mapping[int, str], marks: Path) -> type[Worker]:
    """Return a worker class that dies, freezes or hangs in the chosen tasks, once in each.

    Args:
        disturbances: KILL, FREEZE or HANG by task number.
        marks: A folder that all workers share, with a file for each task that was already disturbed.
    """

    class Doomed(Worker):
        def train(self, work: list[Work]) -> list[Update]:
            for number in (one.task.id for one in work):
                mark = marks / str(number)
                disturbance = disturbances.get(number)
                if disturbance is not None and not mark.exists():
                    mark.touch()
                    if disturbance == HANG:
                        time.sleep(HANG_SECONDS)
                    else:
                        os.kill(os.getpid(), SIGNALS[disturbance])
            return super().train(work)

    return Doomed


def kill_at_tasks(method: str, directory: Path, deaths: int, freezes: int, rng: np.random.Generator) -> Path:
    """Run a method on the cluster with workers that die or freeze at random tasks.

    Args:
        method: The name of the method.
        directory: The run directory.
        deaths: The number of deaths.
        freezes: The number of freezes.
        rng: The generator that chooses the tasks.
    """
    count = deaths + freezes
    tasks = rng.permutation(1 + 5 * np.arange(count) + rng.integers(0, 3, count)).tolist()
    marks = directory.with_suffix(".marks")
    marks.mkdir()
    return run_with_workers(
        make_experiment(method, directory, "ray"),
        directory,
        doomed_worker(dict.fromkeys(tasks[:deaths], KILL) | dict.fromkeys(tasks[deaths:], FREEZE), marks),
        hang_detector=HangDetector(min_seconds=HUNG_AFTER_S, factor=0.0),
    )


def run_with_workers(
    experiment: Experiment, directory: Path, worker: type[Worker], *, count: int = 2, **options: Any
) -> Path:
    """Execute an experiment on the running Ray cluster with the server in this process, and return its run directory.

    Args:
        experiment: The experiment.
        directory: The run directory, which must not exist.
        worker: The class of the workers.
        count: The number of workers.
        options: Further options of `RayExecutor`.
    """
    directory.mkdir()
    spec = build_run(experiment)
    executor = RayExecutor.of(spec, groups=(WorkerGroup(count, {"CPU": 1}),), worker=worker, **options)
    try:
        RunSession(spec, directory, executor, threading.Event()).execute()
    finally:
        executor.close()
    return directory


def kill_at_random(method: str, directory: Path, prefix: str, shots: int, rng: np.random.Generator) -> list[Path]:
    """Run a method repeatedly on the cluster until `shots` processes have been killed.

    Args:
        method: The name of the method.
        directory: The beginning of the run directories' names.
        prefix: The beginning of the titles of the processes to kill.
        shots: The number of kills.
        rng: The generator that chooses the times.
    """
    runs: list[Path] = []
    while shots > 0:
        trial = directory.with_name(f"{directory.name}-{len(runs)}")
        # A run in which workers die too often raises RunFailed. It is resumed after the last kill.
        with kill_randomly(prefix, shots, rng) as hits, suppress(RunFailed):
            run(make_experiment(method, trial, "ray"))
        if not (trial / SUMMARY).exists():
            resume(trial)
        shots -= len(hits)
        runs.append(trial)
    return runs


@contextmanager
def kill_randomly(prefix: str, shots: int, rng: np.random.Generator) -> Iterator[list[int]]:
    """Kill child processes of this process at random times during the `with` block.

    Args:
        prefix: The beginning of the titles of the processes to kill.
        shots: The maximum number of kills.
        rng: The generator that chooses the times.
    """
    over = threading.Event()
    hits: list[int] = []

    def kill_processes() -> None:
        while len(hits) < shots and not over.wait(rng.exponential(PAUSE)):
            targets = [
                process for process in list_descendants(os.getpid()) if process_title(process).startswith(prefix)
            ]
            if targets:
                hits.append(int(rng.choice(targets)))
                os.kill(hits[-1], signal.SIGKILL)

    shooter = threading.Thread(target=kill_processes)
    shooter.start()
    try:
        yield hits
    finally:
        over.set()
        shooter.join()


def kill_driver(
    method: str, directory: Path, size: int, shots: int, tears: int, rng: np.random.Generator
) -> tuple[int, int]:
    """Execute a run, kill its driver when the log reaches random lengths, and truncate files after the kills.

    Args:
        method: The name of the method.
        directory: The run directory.
        size: The size in bytes of the log of a run that was not disturbed.
        shots: The maximum number of kills.
        tears: The maximum number of truncated files.
        rng: The generator that chooses the lengths.

    Returns the number of kills and of truncated files.
    """
    trial = make_experiment(method, directory, "local")
    context = get_context("forkserver")
    stretch = size // shots
    killed = torn = 0
    while not (directory / SUMMARY).exists():
        process = context.Process(target=run, args=(trial,))
        if killed:
            process = context.Process(target=resume, args=(directory,))
        enough = log_size(directory) + int(rng.integers(1, stretch))
        process.start()
        while process.is_alive() and killed < shots:
            if log_size(directory) >= enough:
                process.kill()
                killed += 1
                break
            time.sleep(0.0005)
        process.join()
        if torn < tears and not (directory / SUMMARY).exists():
            torn += tear_file(directory, rng)
    return killed, torn


def log_size(directory: Path) -> int:
    """Return the size in bytes of a run's log; 0 if there is no log."""
    path = directory / EVENTS
    if not path.exists():
        return 0
    return path.stat().st_size


def tear_file(directory: Path, rng: np.random.Generator) -> bool:
    """Truncate the newest checkpoint or the log of a run.

    The run can still be resumed from its second newest checkpoint.

    Returns False, and truncates nothing, if the run has fewer than two checkpoints.
    """
    checkpoints = newest_first(directory / CHECKPOINTS)
    if len(checkpoints) < 2:
        return False
    path = checkpoints[0]
    kept_bytes = 0
    if rng.random() >= 0.5:
        path = directory / EVENTS
        kept_bytes = int(read_state(checkpoints[1].read_bytes())["log"]["events"])
    os.truncate(path, int(rng.integers(kept_bytes, path.stat().st_size)))
    return True


def judge_runs(count: int, runs: Iterable[Path], undisturbed: Path) -> Tally:
    """Compare disturbed runs with the undisturbed run.

    If one run is wrong, all `count` disturbances count as wrong.

    Args:
        count: The total number of disturbances in the runs.
        runs: The directories of the disturbed runs.
        undisturbed: The directory of the undisturbed run.
    """
    expected = History(undisturbed).lines()
    lost = doubled = 0
    well = True
    for directory in runs:
        lines = History(directory).lines()
        missing, twice = lost_and_doubled(directory, undisturbed)
        lost += missing
        doubled += twice
        well &= (
            comparable_log(lines) == comparable_log(expected)
            and lines[-1]["model_sha256"] == expected[-1]["model_sha256"]
        )
    return Tally(count, count * well, lost, doubled)


def comparable_log(lines: list[dict[str, object]]) -> list[dict[str, object]]:
    """Return a log without faults and real times, which differ between equal runs."""
    return [
        {key: value for key, value in line.items() if key not in ("seq", "wall")}
        for line in lines
        if line["kind"] != "fault"
    ]


def run_undisturbed(method: str, folder: Path) -> Path:
    """Execute a run without disturbances and return its directory."""
    return run(make_experiment(method, folder / "undisturbed", "local")).directory


def worker_kills(
    folder: Path, rng: np.random.Generator, method: str, deaths: int = DEATHS, shots: int = WORKERS_SHOT
) -> Tally:
    """Kill workers at chosen tasks in one run, and at random times in further runs.

    Args:
        folder: An empty folder.
        rng: The generator that chooses tasks and times.
        method: The name of the method.
        deaths: The number of kills at chosen tasks.
        shots: The number of kills at random times.
    """
    disturbed = [kill_at_tasks(method, folder / "chosen", deaths, 0, rng)]
    disturbed += kill_at_random(method, folder / "workers", "ray::Worker", shots, rng)
    return judge_runs(deaths + shots, disturbed, run_undisturbed(method, folder))


def worker_hangs(folder: Path, rng: np.random.Generator, method: str) -> Tally:
    """Let workers freeze at random tasks.

    Args:
        folder: An empty folder.
        rng: The generator that chooses the tasks.
        method: The name of the method.
    """
    disturbed = kill_at_tasks(method, folder / "chosen", 0, FREEZES, rng)
    return judge_runs(FREEZES, [disturbed], run_undisturbed(method, folder))


def server_kills(folder: Path, rng: np.random.Generator, method: str, shots: int = SERVERS_SHOT) -> Tally:
    """Kill the server actor at random times.

    Args:
        folder: An empty folder.
        rng: The generator that chooses the times.
        method: The name of the method.
        shots: The number of kills.
    """
    disturbed = kill_at_random(method, folder / "server", "ray::ParameterServer", shots, rng)
    return judge_runs(shots, disturbed, run_undisturbed(method, folder))


def driver_kills(
    folder: Path, rng: np.random.Generator, method: str, shots: int = DRIVERS_SHOT, tears: int = TEARS
) -> Tally:
    """Kill the driver and truncate its files, in as few runs as possible.

    Args:
        folder: An empty folder.
        rng: The generator that chooses the disturbances.
        method: The name of the method.
        shots: The number of kills.
        tears: The number of truncated files.
    """
    undisturbed = run_undisturbed(method, folder)
    disturbed = list[Path]()
    killed = torn = 0
    while killed < shots or torn < tears:
        disturbed.append(folder / f"driver-{len(disturbed)}")
        kills, torn_files = kill_driver(method, disturbed[-1], log_size(undisturbed), shots, tears, rng)
        killed += kills
        torn += torn_files
    return judge_runs(killed + torn, disturbed, undisturbed)


@contextmanager
def on_ray() -> Iterator[None]:
    """Start a private Ray cluster for the `with` block."""
    ray.init(address="local", num_cpus=4, include_dashboard=False, log_to_driver=False)
    try:
        yield
    finally:
        ray.shutdown()


def _of_methods(trial: Callable[..., Tally]) -> dict[str, Trial]:
    return {method: partial(trial, method=method) for method in CHOSEN}


KINDS = [
    Kind("worker kills", _of_methods(worker_kills), on_ray),
    Kind("worker hangs", _of_methods(worker_hangs), on_ray),
    Kind("server kills", _of_methods(server_kills), on_ray),
    Kind("driver kills, torn files", _of_methods(driver_kills), nullcontext),
]
