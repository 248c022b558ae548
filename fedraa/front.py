"""The front door: from an experiment to its run, on whichever engine. The one module that imports everything."""

import os
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path

import torch
from torch import nn

from fedraa.assembly import Assembly, assemble
from fedraa.data import Dataset
from fedraa.experiment import Experiment
from fedraa.history import History
from fedraa.local import choose_device
from fedraa.loop import Progress
from fedraa.pool import LocalPool
from fedraa.runner import Runner

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
    before anything is started or written, for an experiment that cannot be run.
    """
    directory = free_directory(experiment)
    assembly = assemble(experiment, model, dataset)
    directory.mkdir(parents=True, exist_ok=True)
    if experiment.engine == "ray":
        from actors.engine import run_on_ray  # Ray takes seconds to import

        run_on_ray(assembly, directory, watch)
    else:
        _run_here(assembly, directory, watch)
    return History(directory)


def session(experiment: Experiment) -> AbstractContextManager[None]:
    """One Ray cluster for all runs within, where the engine is Ray: each would start one otherwise."""
    if experiment.engine == "local":
        return nullcontext()
    from actors.engine import cluster

    return cluster(experiment)


def _run_here(assembly: Assembly, directory: Path, watch: Watch) -> None:
    experiment = assembly.experiment
    threads = torch.get_num_threads()
    torch.set_num_threads(experiment.threads_per_worker)
    device = choose_device(experiment.device)
    pool = LocalPool(assembly.recipe.trainer(device), assembly.recipe.evaluator(assembly.data, device), assembly.data)
    try:
        Runner(assembly, directory, pool, watch).execute()
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
