"""The front door: from an experiment to its run, on whichever engine. The one module that imports everything."""

import gc
import json
import os
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from threading import Event

import torch
from torch import nn

from fedraa.client import choose_device
from fedraa.config.experiment import Experiment
from fedraa.data import Dataset
from fedraa.engine.build import build
from fedraa.engine.executor import LocalExecutor
from fedraa.engine.loop import Progress
from fedraa.engine.run_spec import RunSpec
from fedraa.engine.session import RunSession, describe
from fedraa.engine.signals import Interrupted, interruptible, terminable
from fedraa.rundir.history import SUMMARY, History

RUNS = Path("runs")
Watch = Callable[[Progress], None]


def ignore(progress: Progress) -> None:
    """Watches nothing."""


def run(
    experiment: Experiment,
    *,
    model: nn.Module | None = None,
    dataset: Dataset | None = None,
    watch: Watch = ignore,
) -> History:
    """Run an experiment to its end; the History reads the run directory that it wrote.

    `model` and `dataset` are the user's own, in place of the experiment's named ones. Raises ValueError,
    before anything is started or written, for an experiment that cannot be run; Interrupted, a KeyboardInterrupt,
    after Ctrl-C, when `resume` can go on.
    """
    directory = free_directory(experiment)
    spec = build(experiment, model, dataset)
    directory.mkdir(parents=True, exist_ok=True)
    try:
        return _execute(spec, directory, watch, resume=False)
    finally:
        if not os.listdir(directory):
            directory.rmdir()


def resume(
    directory: Path,
    *,
    model: nn.Module | None = None,
    dataset: Dataset | None = None,
    watch: Watch = ignore,
) -> History:
    """Go on with a run that was interrupted or killed, from its last checkpoint, to the end it would have had.

    A run of the user's own `model` or `dataset` needs them again. Raises ValueError for a run that has ended, that
    another process is writing, or that was of something else.
    """
    history = History(directory)
    if (directory / SUMMARY).exists():
        raise ValueError(f"run: {directory} has ended; there is nothing to go on with")
    spec = build(history.experiment, model, dataset)
    was, now = history.config["resolved"], json.loads(json.dumps(describe(spec)["resolved"]))
    if wrong := [key for key in was.keys() | now.keys() if was.get(key) != now.get(key)]:
        raise ValueError(
            f"run: {directory} was of another model, dataset or fleet, its {min(wrong)} differs; "
            "give those that it was started with"
        )
    return _execute(spec, directory, watch, resume=True)


def _execute(spec: RunSpec, directory: Path, watch: Watch, *, resume: bool) -> History:
    if spec.experiment.engine == "ray":
        from actors.cluster.engine import run_on_ray as execute  # Ray takes seconds to import
    else:
        execute = run_here
    ended = execute(spec, directory, watch, resume)
    gc.collect()  # a run's objects refer to each other; several runs in one process must not add up
    if not ended:
        raise Interrupted(f"stopped, with a checkpoint; go on with: fedraa resume {directory}")
    return History(directory)


def session(experiment: Experiment) -> AbstractContextManager[None]:
    """One Ray cluster for all runs within, where the engine is Ray: each would start one otherwise."""
    if experiment.engine == "local":
        return nullcontext()
    from actors.cluster.engine import cluster

    return cluster(experiment)


def run_here(spec: RunSpec, directory: Path, watch: Watch, resume: bool) -> bool:
    """Runs in this process; whether to the end."""
    experiment = spec.experiment
    threads = torch.get_num_threads()
    torch.set_num_threads(experiment.threads_per_worker)
    device = choose_device(experiment.device)
    trainer, evaluator = spec.worker_spec.trainer(device), spec.worker_spec.evaluator(spec.data, device)
    executor = LocalExecutor(trainer, evaluator, spec.data, experiment.stack)
    stop = Event()

    def interrupt() -> None:
        stop.set()
        executor.drop()

    try:
        with interruptible(interrupt), terminable(interrupt):
            return RunSession(spec, directory, executor, stop, watch).execute(resume=resume)
    finally:
        torch.set_num_threads(threads)


def free_directory(experiment: Experiment) -> Path:
    """The run directory: `out`, which must not hold anything yet, or a new one under runs/."""
    if experiment.out is not None:
        if experiment.out.is_file() or (experiment.out.is_dir() and os.listdir(experiment.out)):
            raise ValueError(f"out: {experiment.out} is in use; choose a directory that is new or empty")
        return experiment.out
    name = f"{experiment.method}-{Path(experiment.dataset).stem}-{experiment.seed}"
    number = 1
    while (directory := RUNS / (name if number == 1 else f"{name}-{number}")).exists():
        number += 1
    return directory
