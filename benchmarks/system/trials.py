"""Execute and measure the runs of `python -m benchmarks throughput`."""

import os
import statistics
import time
from dataclasses import dataclass, field, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from threading import Event
from typing import Any

import numpy as np

from actors.cluster.processes import cpu_seconds
from actors.pool.executor import RayExecutor
from actors.server.shard import NO_BUFFER
from actors.worker.worker import Worker
from benchmarks.system.bare import BareProcesses, Settings, Shards, Spent
from benchmarks.system.processes import list_descendants
from fedraa.callbacks import Callback, Progress
from fedraa.callbacks.callback_list import CallbackList
from fedraa.config.experiment import Experiment
from fedraa.data import Dataset
from fedraa.devices.worker_groups import WorkerGroup
from fedraa.engine.build import build_run
from fedraa.engine.session import RunSession
from fedraa.messages import Fault, Update

CORES = 2
SGD = Settings(epochs=5, batch=128, lr=0.005)
WIDEST = "widest"
# The number of hidden units of each MLP.
MODELS = {"small": 50, "mnist": 200, "large": 1024, WIDEST: 20_000}


@dataclass(frozen=True)
class Measurement:
    """The result of a measurement.

    Attributes:
        what: The name of the measurement.
        clients: The number of clients.
        model: A key of MODELS.
        unit: The unit of `fedraa` and `floor`.
        fedraa: The median in fedraa.
        floor: The median in bare code; None if it was not measured.
        cpu: The ratio of the CPU times; None if it was not measured.
    """

    what: str
    clients: int
    model: str
    unit: str
    fedraa: float
    floor: float | None = None
    cpu: float | None = None

    @property
    def ratio(self) -> float | None:
        if self.floor is None:
            return None
        return self.fedraa / self.floor

    def numbers(self) -> list[str]:
        """Return four texts: fedraa's value with its unit, the bare value, their ratio, and the CPU ratio."""
        compared_values = ("" if value is None else f"{value:.3g}" for value in (self.floor, self.ratio, self.cpu))
        return [f"{self.fedraa:.3g} {self.unit}", *compared_values]


def synthetic_dataset(samples: int, shape: tuple[int, ...] = (1, 28, 28)) -> Dataset:
    """Return random samples, by default in the shape of MNIST, because the speed does not depend on the values."""
    rng = np.random.default_rng(0)
    x = rng.standard_normal((samples, *shape), np.float32)
    y = rng.integers(0, 10, samples)
    return Dataset("synthetic", x, y, x[:100], y[:100], 10)


def trial_experiment(
    method: str, clients: int, model: str, *, updates: int | None = None, **changes: Any
) -> Experiment:
    """Return an experiment with almost no evaluation, so that plain PyTorch loops can do the same work.

    Args:
        method: The name of the method.
        clients: The number of clients.
        model: A key of MODELS.
        updates: The number of updates; None for a method in rounds, for which `changes` has the number of rounds.
        changes: Further fields.
    """
    steps = updates or changes["rounds"]
    return Experiment(
        method=method,
        clients=clients,
        compute="1:0.5,3:0.5",
        hidden=(MODELS[model],),
        local_epochs=SGD.epochs,
        batch_size=SGD.batch,
        lr=SGD.lr,
        momentum=SGD.momentum,
        workers=CORES,
        quiet=True,
        updates=updates,
        eval_every=steps,
        checkpoint_every=steps,
        **changes,
    )


class Marks(Callback):
    """A callback that records the real and CPU time at the end of the warm-up (step `warm`) and at the last step."""

    blocking = False

    def __init__(self, warm: int, last: int) -> None:
        self.warm, self.last = warm, last
        self.at: dict[int, tuple[float, float]] = {}

    def on_progress(self, progress: Progress) -> None:
        if progress.step in (self.warm, self.last) and progress.step not in self.at:
            self.at[progress.step] = (time.perf_counter(), cpu_seconds_of_all())


def measure_run(
    experiment: Experiment, dataset: Dataset, warm: int, worker: type[Worker] = Worker
) -> tuple[Spent, list[Update]]:
    """Execute a run with the server in this process, and measure it after the warm-up.

    Args:
        experiment: The experiment.
        dataset: The data.
        warm: The number of warm-up steps.
        worker: The class of the workers.

    Returns the times and the updates after the warm-up steps.
    """
    spec = build_run(experiment, dataset=dataset)
    marks = Marks(warm, experiment.updates or experiment.rounds or 0)
    commits: list[Update] = []
    executor = _RecordingExecutor.of(spec, groups=(WorkerGroup(CORES, {"CPU": 1}),), worker=worker, taken=commits)
    with TemporaryDirectory() as directory:
        try:
            RunSession(spec, Path(directory), executor, Event(), CallbackList([marks], progress_seconds=0.0)).execute()
        finally:
            executor.close()
    (start, used), (end, using) = marks.at[warm], marks.at[marks.last]
    return Spent(end - start, using - used), commits[warm:]


@dataclass
class _RecordingExecutor(RayExecutor):
    """An executor on Ray that records the received updates without their parameters."""

    taken: list[Update] = field(default_factory=list)

    def wait(self, task: int, timeout: float) -> Update | Fault | None:
        outcome = super().wait(task, timeout)
        if isinstance(outcome, Update):
            self.taken.append(replace(outcome, params=NO_BUFFER))
        return outcome


def cpu_seconds_of_all() -> float:
    """Return the CPU seconds of this process and of its living descendants."""
    return time.process_time() + sum(map(cpu_seconds, list_descendants(os.getpid())))


def bare_processes(dataset: Dataset, clients: int, model: str, device: str) -> BareProcesses:
    """Start plain PyTorch processes with the data of the clients.

    Args:
        dataset: The data, split evenly in order.
        clients: The number of clients.
        model: A key of MODELS.
        device: The device of the training.
    """
    shards = np.array_split(np.arange(len(dataset.y_train)), clients)
    pieces: Shards = [(np.asarray(dataset.x_train[rows], np.float32), dataset.y_train[rows]) for rows in shards]
    return BareProcesses((784, MODELS[model], 10), pieces, replace(SGD, device=device), processes=CORES)


def compare_times(what: str, clients: int, model: str, measured_times: list[Spent], floor: list[Spent]) -> Measurement:
    """Return a Measurement with the medians of fedraa's times and of the bare code's times.

    Args:
        what: The name of the measurement.
        clients: The number of clients.
        model: A key of MODELS.
        measured_times: The times of fedraa.
        floor: The times of the bare code.
    """
    cpu = statistics.median(spent.cpu for spent in measured_times) / statistics.median(spent.cpu for spent in floor)
    return Measurement(what, clients, model, "s", median_wall(measured_times), median_wall(floor), cpu)


def median_wall(spent: list[Spent]) -> float:
    """Return the median elapsed seconds."""
    return statistics.median(one.wall for one in spent)
