"""Measure runs with a million clients beside runs with a thousand.

    python -m benchmarks million

The table has the start-up time, the memory, and the time per event. A client's samples are made when it trains. The
speeds of devices are log-normal, and each device is available for a third of the day. Every run has a separate process
without Ray, so the memory of the process is the memory of the run.
"""

import json
import resource
import subprocess
import sys
import time
from itertools import product
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np

from benchmarks.system.known_names import refuse_below_one, refuse_unknown_names
from fedraa.api import run
from fedraa.callbacks import Callback
from fedraa.data import FederatedDataset
from fedraa.rundir.atomic_files import replace_file

RESULTS = Path(__file__).parents[1] / "results" / "million.csv"
CLIENTS = (1_000, 1_000_000)
SAMPLES, FEATURES, CLASSES = 20, 32, 10
RUNS: dict[str, dict[str, Any]] = {
    "fed-raa": {"updates": 1500, "concurrency": 100},
    "fedbuff": {"updates": 150, "concurrency": 100},
    "fedavg": {"rounds": 15, "participation": "sample:100"},
    "scaffold": {"rounds": 15, "participation": "sample:100"},
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
    refuse_below_one("repeats", repeats)
    rows = []
    for method in methods:
        results: dict[int, list[dict[str, Any]]] = {count: [] for count in clients}
        for _, count in product(range(repeats), clients):
            code = f"from benchmarks.system.million import {measure_run.__name__} as measure; "
            code += f"import json; print(json.dumps(measure({method!r}, {count})))"
            child = subprocess.run([sys.executable, "-c", code], check=True, stdout=subprocess.PIPE, text=True)
            results[count].append(json.loads(child.stdout.splitlines()[-1]))
        for of_count in results.values():
            row = {name: min(one[name] for one in of_count) for name in of_count[0]}
            row["peak_gb"] = max(one["peak_gb"] for one in of_count)
            rows.append(row)
            sys.stdout.write(" ".join(f"{name} {_format_value(value)}" for name, value in row.items()) + "\n")
    with replace_file(out) as stream:
        lines = [",".join(rows[0]), *(",".join(_format_value(value) for value in row.values()) for row in rows)]
        stream.write(("\n".join(lines) + "\n").encode())


def _format_value(value: object) -> str:
    return f"{value:.3g}" if isinstance(value, float) else str(value)
