"""Measure runs with a million clients beside runs with a thousand.

    python -m benchmarks million

The table has the start-up time, the memory, and `event_ms`, the CPU time per client update in ms. The samples of a
client are made when it trains. The speeds of devices are log-normal, and each device is available for a third of the
day. Every run has a separate process without Ray, so the memory of the process is the memory of the run.
"""

import resource
import time
from itertools import product
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np

from benchmarks.system.option_checks import refuse_below, refuse_unknown_names
from benchmarks.system.processes import call_in_child
from benchmarks.system.rows import open_table, write_table
from fedraa.api import run
from fedraa.callbacks import Callback
from fedraa.cli.console import print_line
from fedraa.data import FederatedDataset

RESULTS = Path(__file__).parents[1] / "results" / "million.csv"
CLIENTS = (1_000, 1_000_000)
SAMPLES, FEATURES, CLASSES = 20, 32, 10
# The number of clients that train at the same time.
COHORT = 100
RUNS: dict[str, dict[str, Any]] = {
    "fed-raa": {"updates": 1500, "concurrency": COHORT},
    "fedbuff": {"updates": 150, "concurrency": COHORT},
    "fedavg": {"rounds": 15, "participation": f"sample:{COHORT}"},
    "scaffold": {"rounds": 15, "participation": f"sample:{COHORT}"},
}
CENTRES = np.random.default_rng(0).standard_normal((CLASSES, FEATURES)).astype(np.float32)


def draw_samples(client: int) -> tuple[Any, Any]:
    """Return a client's samples, of at most two classes."""
    rng = np.random.default_rng(client)
    y = rng.choice(rng.integers(0, CLASSES, 2), SAMPLES)
    return CENTRES[y] + rng.standard_normal((SAMPLES, FEATURES), np.float32), y


class Seen(Callback):
    """A callback that counts commits, and records the times of the first and the last one.

    A commit is the moment at which the server accepts a client update.
    """

    blocking = False

    def __init__(self) -> None:
        self.started = self.first = self.last = 0.0
        self.events = 0

    def on_commit(self, event: Any) -> None:
        self.last = time.process_time()
        if not self.events:
            self.started, self.first = time.perf_counter(), self.last
        self.events += 1


def measure_run(method: str, clients: int) -> dict[str, Any]:
    """Run a method in this process and measure the run.

    Returns the seconds until the first client update was committed, the CPU time per later commit, and the peak memory.
    """
    seen = Seen()
    started = time.perf_counter()
    rng = np.random.default_rng(1)
    y = rng.integers(0, CLASSES, 1000)
    test = (CENTRES[y] + rng.standard_normal((1000, FEATURES), np.float32), y)
    with TemporaryDirectory() as folder:
        run(
            method=method,
            dataset=FederatedDataset("synthetic", draw_samples, test, CLASSES, sizes=SAMPLES),
            clients=clients,
            compute="lognormal:1",
            availability="daily:0.33",
            availability_period=24.0,
            engine="local",
            local_epochs=1,
            eval_every=10**9,
            out=Path(folder) / "run",
            quiet=True,
            callbacks=(seen,),
            **RUNS[method],
        )
    return {
        "method": method,
        "clients": clients,
        "start_s": seen.started - started,
        "event_ms": 1000 * (seen.last - seen.first) / (seen.events - 1),
        "peak_gb": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 / 1e9,
    }


def main(
    methods: tuple[str, ...] = tuple(RUNS),
    clients: tuple[int, ...] = CLIENTS,
    repeats: int = 3,
    out: Path = RESULTS,
) -> None:
    """Measure runs and write the table, which has the minimum of each time and the maximum of the memory over repeats.

    Args:
        methods: The methods to measure.
        clients: The numbers of clients.
        repeats: The number of runs for each method and number of clients.
        out: The CSV file.
    """
    refuse_unknown_names("methods", methods, RUNS)
    refuse_below(COHORT, clients=clients)
    refuse_below(1, repeats=repeats)
    open_table(out, ("method", "clients"))
    rows = []
    for method in methods:
        results: dict[int, list[dict[str, Any]]] = {count: [] for count in clients}
        for _, count in product(range(repeats), clients):
            results[count].append(call_in_child(measure_run, method, count))
        for of_count in results.values():
            row = {name: min(one[name] for one in of_count) for name in of_count[0]}
            row["peak_gb"] = max(one["peak_gb"] for one in of_count)
            rows.append({name: _format_value(value) for name, value in row.items()})
            print_line(" ".join(f"{name} {value}" for name, value in rows[-1].items()))
    write_table(out, list(rows[0]), rows)


def _format_value(value: object) -> str:
    return f"{value:.3g}" if isinstance(value, float) else str(value)
