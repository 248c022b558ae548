"""Measure the memory of every process in a run of 2,000 clients and 200,000 updates on a private cluster.

    python -m benchmarks.system.memory

The private memory of each process is read every second. A straight line is fitted to the memory over the number of
updates, after the first third of the run. The first table has the level and the slope per 1,000 updates of each
process's line, and the growth of the object store. The second table has the memory at every 2,000th update.
"""

import os
import threading
import time
from collections import defaultdict
from collections.abc import Mapping, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import pandas as pd
import ray

from actors.cluster.own_cluster import own_cluster
from benchmarks.system.processes import list_descendants, process_title, resident_bytes
from fedraa.api import run
from fedraa.callbacks import Callback, Progress
from fedraa.config.experiment import Experiment
from fedraa.data import Dataset
from fedraa.rundir.atomic_files import write_text

CLIENTS, UPDATES, EVERY = 2_000, 200_000, 2_000
RESULTS = Path(__file__).parents[1] / "results"
NAMES = {
    "ray::ParameterServer": "server",
    "ray::Worker": "worker",
    "/gcs/gcs_server": "gcs",
    "/raylet/raylet": "raylet",
}


def make_dataset() -> Dataset:
    """Return a data set with four random samples for every client."""
    rng = np.random.default_rng(0)
    x = rng.normal(size=(4 * CLIENTS, 8)).astype(np.float32)
    y = rng.integers(0, 4, 4 * CLIENTS)
    return Dataset("noise", x, y, x[: 2 * CLIENTS], y[: 2 * CLIENTS], classes=4)


def process_kind(process: int) -> str | None:
    """Return the kind of a process, such as `server`; None if the process is not part of the run."""
    if process == os.getpid():
        return "driver"
    called = process_title(process).split(" ")[0]
    return next((name for part, name in NAMES.items() if part in called), None)


def object_store_bytes() -> float:
    """Return the used bytes of Ray's object store."""
    # These functions of Ray have no type hints.
    whole = ray.cluster_resources()
    free = ray.available_resources()
    return float(whole["object_store_memory"] - free.get("object_store_memory", 0.0))


class Seen(Callback):
    """A callback that counts the server steps."""

    blocking = False
    step = 0

    def on_progress(self, progress: Progress) -> None:
        self.step = progress.step


def main() -> None:
    """Execute the run, fit a line to each process's memory, and write both tables."""
    samples: dict[str, list[tuple[int, float]]] = defaultdict(list)
    seen = Seen()
    over = threading.Event()

    def sample_memory() -> None:
        while not over.wait(1.0):
            sizes: dict[str, list[int]] = defaultdict(list)
            for process in (os.getpid(), *list_descendants(os.getpid())):
                name = process_kind(process)
                if name is not None:
                    sizes[name].append(resident_bytes(process))
            for name, sizes_of_kind in sizes.items():
                samples[name].append((seen.step, max(sizes_of_kind)))

    with own_cluster(2):
        before = object_store_bytes()
        sampler = threading.Thread(target=sample_memory)
        sampler.start()
        try:
            with TemporaryDirectory(prefix="fedraa-memory-") as directory:
                run(make_experiment(Path(directory)), dataset=make_dataset(), callbacks=[seen])
        finally:
            over.set()
            sampler.join()
        # Ray needs some seconds to release the objects of killed processes.
        deadline = time.monotonic() + 60
        while object_store_bytes() > before and time.monotonic() < deadline:
            time.sleep(0.5)
        more = object_store_bytes() - before
    lines = [fit_line(name, [point for point in points if point[0] > UPDATES / 3]) for name, points in samples.items()]
    lines.append({"process": "object store", "megabytes": round(more / 1e6, 3), "per_1000_updates": 0.0})
    write_text(RESULTS / "memory.csv", pd.DataFrame(lines).to_csv(index=False))
    write_text(RESULTS / "memory_long.csv", memory_over_time(samples).to_csv(index=False))


def make_experiment(out: Path) -> Experiment:
    """Return a long experiment with a small model."""
    return Experiment(clients=CLIENTS, hidden=(8,), local_steps=1, updates=UPDATES, workers=1, out=out, quiet=True)


def memory_over_time(samples: Mapping[str, Sequence[tuple[int, float]]]) -> pd.DataFrame:
    """Return the memory of each process in MB, as medians over intervals of `EVERY` updates."""
    columns = {}
    for name, points in samples.items():
        steps, sizes = np.array(points, np.float64).T
        columns[name] = pd.Series(sizes / 1e6).groupby(steps // EVERY * EVERY).median().round(2)
    table = pd.DataFrame(columns)
    table.index = table.index.astype(int).rename("update")
    return table.reset_index()


def fit_line(name: str, points: list[tuple[int, float]]) -> dict[str, object]:
    """Fit a Theil-Sen line, which ignores peaks. Return its level in MB and its slope in MB per 1,000 updates."""
    steps, sizes = np.array(points, np.float64).T
    first, second = np.triu_indices(len(steps), 1)
    apart = steps[second] > steps[first]
    slopes = (sizes[second] - sizes[first])[apart] / (steps[second] - steps[first])[apart]
    return {
        "process": name,
        "megabytes": round(float(np.median(sizes)) / 1e6, 1),
        "per_1000_updates": round(float(np.median(slopes)) / 1e3, 3),
    }


if __name__ == "__main__":
    main()
