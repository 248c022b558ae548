"""Measure the memory of the server, a worker and Ray's object store in a run."""

import os
import time
from collections import defaultdict
from pathlib import Path
from tempfile import TemporaryDirectory
from threading import Event, Thread
from typing import Any

from benchmarks.system.memory import object_store_bytes, process_kind
from benchmarks.system.processes import list_descendants, resident_bytes
from benchmarks.system.trials import MODELS, WIDEST, Measurement, trial_experiment
from fedraa.api import run
from fedraa.config.experiment import Experiment
from fedraa.data import Dataset
from fedraa.engine.build import build_run
from fedraa.engine.memory_check import Need

LOOK_SECONDS = 0.05
# The number of clients in the measurement of a large model.
CLIENTS = 10


def measure_memory(dataset: Dataset, clients: int, model: str, *, device: str) -> list[Measurement]:
    """Return the peak memory of each process and of the object store in two rounds of FedAvg.

    Args:
        dataset: The data.
        clients: The number of clients.
        model: A key of MODELS.
        device: The device of the training.
    """
    peaks = peak_bytes(trial_experiment("fedavg", clients, model, rounds=2, device=device), dataset)
    return [Measurement(f"peak of {name}", clients, model, "MB", size / 1e6) for name, size in peaks.items()]


def measure_footprint(dataset: Dataset, method: str, **fields: Any) -> list[Measurement]:
    """Return the peak memory that a large model adds to the server and to a worker.

    Each peak is compared with a lower bound. For the server it is the estimate of `fedraa plan`. For the worker it is
    the size of the largest submodel, its gradient and its momentum.

    Args:
        dataset: The data.
        method: The name of the method.
        fields: Further fields of the experiment.
    """
    base, peaks = (
        peak_bytes(trial_experiment(method, CLIENTS, model, **fields), dataset)
        for model in (next(iter(MODELS)), WIDEST)
    )
    spec = build_run(trial_experiment(method, CLIENTS, WIDEST, **fields), dataset=dataset)
    submodel = max(spec.measure(part.widths).bytes for part in spec.submodels)
    return [
        Measurement(
            f"{method}: {what} beyond its base", CLIENTS, WIDEST, "MB", (peaks[what] - base[what]) / 1e6, floor / 1e6
        )
        for what, floor in (("server", Need.of(spec).server), ("worker", 3 * submodel))
    ]


def peak_bytes(experiment: Experiment, dataset: Dataset) -> dict[str, float]:
    """Execute a run, and return the peak bytes of the server, a worker and the object store."""
    peaks: dict[str, float] = defaultdict(float)
    ended = Event()

    def list_actors() -> list[tuple[str, int]]:
        kinds = [(process_kind(process), process) for process in list_descendants(os.getpid())]
        return [(name, process) for name, process in kinds if name is not None]

    def record_peaks() -> None:
        while not ended.wait(LOOK_SECONDS):
            for name, process in list_actors():
                peaks[name] = max(peaks[name], resident_bytes(process))
            peaks["object store"] = max(peaks["object store"], object_store_bytes())

    # Actors of the previous run may still be alive. Wait until they have ended.
    while any(name in ("server", "worker") for name, _ in list_actors()):
        time.sleep(LOOK_SECONDS)
    looking = Thread(target=record_peaks)
    looking.start()
    try:
        with TemporaryDirectory() as directory:
            run(experiment.model_copy(update={"out": Path(directory) / "run"}), dataset=dataset)
    finally:
        ended.set()
        looking.join()
    return dict(peaks)
