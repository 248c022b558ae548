"""Kill, hang and tear everything, many times over, and compare what comes out with runs that were left alone.

    python -m benchmarks.system.chaos

For every method: workers die and freeze at chosen tasks (SIGKILL and SIGSTOP by their own hand) and at random
moments; the server actor is killed at random moments; the driver is killed at random moments, its last checkpoint or
log torn, and the run resumed. Each run must end with the bits and the log of the undisturbed one, faults aside.
"""

import os
import signal
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from multiprocessing import get_context
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import pandas as pd
import ray

from actors.pool.executor import RayExecutor
from actors.pool.handles import HangDetector
from actors.worker.worker import Worker
from benchmarks.system.processes import descendants, title
from fedraa.api import resume, run
from fedraa.config.experiment import Experiment
from fedraa.devices.worker_groups import WorkerGroup
from fedraa.engine.build import build
from fedraa.engine.session import RunSession
from fedraa.errors import RunFailed
from fedraa.messages import Task, Update
from fedraa.methods.catalog import METHODS
from fedraa.rundir.checkpoint import newest_first, read
from fedraa.rundir.files import replacing
from fedraa.rundir.history import History
from fedraa.rundir.layout import CHECKPOINTS, EVENTS, SUMMARY
from fedraa.server.async_rules import Buffer

SEED = 0
RESULTS = Path(__file__).parents[1] / "results" / "chaos.csv"
ASYNCHRONOUS = ("fed-raa", "fedasync", "fedbuff", "fed-raa-random")
ROUNDS = ("fed-raa-sync", "fedavg", "scaffold", "ram-fed", "heterofl", "prunefl")
CHOSEN = ASYNCHRONOUS + ROUNDS
FREEZE = 10.0  # seconds after which a worker counts as frozen
PAUSE = 2.0  # seconds on average between two shots


@dataclass(frozen=True)
class Dose:
    """How much befalls each method."""

    deaths: int = 18
    freezes: int = 2
    shots_at_workers: int = 4
    shots_at_server: int = 3
    shots_at_driver: int = 4
    tears: int = 3


@dataclass
class Outcome:
    """What befell one method's runs, and what came of it."""

    method: str
    worker_kills: int = 0
    hangs: int = 0
    server_kills: int = 0
    driver_kills: int = 0
    torn: int = 0
    faults_logged: int = 0
    lost: int = 0
    applied_twice: int = 0
    runs: int = 0
    same_log: int = 0
    same_bits: int = 0
    seconds: float = 0.0


def experiment(method: str, out: Path, engine: str) -> Experiment:
    """About 120 commits of tiny tasks, and ten checkpoints."""
    update = METHODS[method].update
    steps = 20 if method in ROUNDS else 120 // (update.size if isinstance(update, Buffer) else 1)
    limit = {"rounds": steps} if method in ROUNDS else {"updates": steps}
    return Experiment(
        method=method,
        engine=engine,
        out=out,
        hidden=(8,),
        clients=6,
        local_steps=2,
        workers=2,
        checkpoint_every=max(1, steps // 10),
        **limit,
    )


def doomed(deaths: frozenset[int], freezes: frozenset[int], marks: Path) -> type[Worker]:
    """A worker that dies or freezes when it is given one of these tasks, whoever it is, once per task."""

    class Doomed(Worker):
        def train(self, header: Task, *rest: Any) -> Update:
            mark = marks / str(header.id)
            if header.id in deaths | freezes and not mark.exists():
                mark.touch()
                os.kill(os.getpid(), signal.SIGKILL if header.id in deaths else signal.SIGSTOP)
            return super().train(header, *rest)

    return Doomed


def at_chosen_tasks(method: str, directory: Path, dose: Dose, rng: np.random.Generator) -> None:
    """One run on the cluster in which workers die and freeze at tasks drawn apart from each other."""
    count = dose.deaths + dose.freezes
    tasks = rng.permutation(1 + 5 * np.arange(count) + rng.integers(0, 3, count)).tolist()
    marks = directory.with_suffix(".marks")
    marks.mkdir()
    directory.mkdir()
    spec = build(experiment(method, directory, "ray"))
    executor = RayExecutor.of(
        spec,
        groups=(WorkerGroup(2, {"CPU": 1}),),
        worker=doomed(frozenset(tasks[: dose.deaths]), frozenset(tasks[dose.deaths :]), marks),
        hang_detector=HangDetector(least=FREEZE, factor=0.0),
    )
    try:
        RunSession(spec, directory, executor, threading.Event()).execute()
    finally:
        executor.close()


def at_random_moments(method: str, directory: Path, prefix: str, shots: int, rng: np.random.Generator) -> list[Path]:
    """Runs on the cluster, until so many processes whose titles begin with `prefix` have been shot."""
    runs: list[Path] = []
    while shots > 0:
        trial = directory.with_name(f"{directory.name}-{len(runs)}")
        # All workers may be shot too often: then it is gone on with when the shooting is over.
        with shooting(prefix, shots, rng) as hits, suppress(RunFailed):
            run(experiment(method, trial, "ray"))
        if not (trial / SUMMARY).exists():
            resume(trial)
        shots -= len(hits)
        runs.append(trial)
    return runs


@contextmanager
def shooting(prefix: str, shots: int, rng: np.random.Generator) -> Iterator[list[int]]:
    """Meanwhile, processes below this one whose titles begin so are killed at random moments."""
    over = threading.Event()
    hits: list[int] = []

    def shoot() -> None:
        while len(hits) < shots and not over.wait(rng.exponential(PAUSE)):
            if targets := [process for process in descendants(os.getpid()) if title(process).startswith(prefix)]:
                hits.append(int(rng.choice(targets)))
                os.kill(hits[-1], signal.SIGKILL)

    shooter = threading.Thread(target=shoot)
    shooter.start()
    try:
        yield hits
    finally:
        over.set()
        shooter.join()


def drive(trial: Experiment, again: bool) -> None:
    """A whole run, for a process of its own."""
    assert trial.out is not None
    if again:
        resume(trial.out)
    else:
        run(trial)


def with_the_driver_shot(
    method: str, directory: Path, size: int, dose: Dose, rng: np.random.Generator
) -> tuple[int, int]:
    """A run in processes that are killed one after another somewhere in its log of `size` bytes, files being torn.

    Returns how many were killed, and how many files torn.
    """
    trial, context = experiment(method, directory, "local"), get_context("forkserver")
    stretch = size // dose.shots_at_driver
    killed = torn = 0
    while not (directory / SUMMARY).exists():
        process = context.Process(target=drive, args=(trial, killed > 0))
        enough = log_size(directory) + int(rng.integers(1, stretch))
        process.start()
        while process.is_alive() and killed < dose.shots_at_driver:
            if log_size(directory) >= enough:
                process.kill()
                killed += 1
                break
            time.sleep(0.0005)
        process.join()
        if torn < dose.tears and not (directory / SUMMARY).exists():
            torn += tear(directory, rng)
    return killed, torn


def log_size(directory: Path) -> int:
    path = directory / EVENTS
    return path.stat().st_size if path.exists() else 0


def tear(directory: Path, rng: np.random.Generator) -> bool:
    """Cuts the newest checkpoint, or the log down to no less than the checkpoint before needs; whether it could."""
    checkpoints = newest_first(directory / CHECKPOINTS)
    if len(checkpoints) < 2:
        return False
    if rng.random() < 0.5:
        path, least = checkpoints[0], 0
    else:
        path, least = directory / EVENTS, int(read(checkpoints[1].read_bytes())["log"]["events"])
    os.truncate(path, int(rng.integers(least, path.stat().st_size)))
    return True


def judge(outcome: Outcome, directory: Path, undisturbed: Path) -> None:
    """Compares a run with the undisturbed one."""
    ours, theirs = History(directory).lines(), History(undisturbed).lines()
    committed = [line["task"] for line in ours if line["kind"] == "commit"]
    outcome.runs += 1
    outcome.faults_logged += sum(line["kind"] == "fault" for line in ours)
    outcome.lost += len({line["task"] for line in theirs if line["kind"] == "commit"} - set(committed))
    outcome.applied_twice += len(committed) - len(set(committed))
    outcome.same_log += essence(ours) == essence(theirs)
    outcome.same_bits += ours[-1]["model_sha256"] == theirs[-1]["model_sha256"]


def essence(lines: list[dict[str, object]]) -> list[dict[str, object]]:
    """A log less its faults and real times."""
    return [
        {key: value for key, value in line.items() if key not in ("seq", "wall")}
        for line in lines
        if line["kind"] != "fault"
    ]


def torment(method: str, directory: Path, dose: Dose, rng: np.random.Generator) -> Outcome:
    """All that can befall one method. Ray must have been started."""
    started, outcome = time.monotonic(), Outcome(method)
    undisturbed = directory / "undisturbed"
    run(experiment(method, undisturbed, "local"))
    at_chosen_tasks(method, directory / "chosen", dose, rng)
    disturbed = [directory / "chosen"]
    disturbed += at_random_moments(method, directory / "workers", "ray::Worker", dose.shots_at_workers, rng)
    disturbed += at_random_moments(method, directory / "server", "ray::ParameterServer", dose.shots_at_server, rng)
    outcome.worker_kills, outcome.hangs = dose.deaths + dose.shots_at_workers, dose.freezes
    outcome.server_kills = dose.shots_at_server
    while outcome.driver_kills < dose.shots_at_driver or outcome.torn < dose.tears:
        disturbed.append(directory / f"driver-{len(disturbed)}")
        killed, torn = with_the_driver_shot(method, disturbed[-1], log_size(undisturbed), dose, rng)
        outcome.driver_kills += killed
        outcome.torn += torn
    for run_directory in disturbed:
        judge(outcome, run_directory, undisturbed)
    outcome.seconds = round(time.monotonic() - started, 1)
    return outcome


def main() -> None:
    """Torment every chosen method and write the table; exits with an error if anything came out otherwise."""
    ray.init(address="local", num_cpus=4, include_dashboard=False, log_to_driver=False)
    outcomes = []
    for number, method in enumerate(CHOSEN):
        with TemporaryDirectory(prefix="fedraa-chaos-") as directory:
            outcomes.append(torment(method, Path(directory), Dose(), np.random.default_rng([SEED, number])))
        with replacing(RESULTS) as stream:
            stream.write(pd.DataFrame(map(asdict, outcomes)).to_csv(index=False).encode())
    ray.shutdown()
    bad = [o.method for o in outcomes if o.lost or o.applied_twice or not o.runs == o.same_log == o.same_bits]
    if bad:
        sys.exit(f"chaos: {', '.join(bad)} came out otherwise")


if __name__ == "__main__":
    main()
