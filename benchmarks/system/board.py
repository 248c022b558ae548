"""Measure how long `fedraa board` takes to start and to show a new event.

    python -m benchmarks board

The runs and their logs are synthetic. The board runs in a separate process.
"""

import json
import resource
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import count, islice
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any
from urllib.request import urlopen

from benchmarks.system.option_checks import refuse_below
from benchmarks.system.processes import start_tree
from fedraa.api import run
from fedraa.cli.console import print_line
from fedraa.rundir.file_names import CONFIG, EVALS, EVENTS

RUNS, EVENTS_EACH = 100, 10_000
# The numbers of clients and fragments in a synthetic log, and the number of commits between two evaluations.
CLIENTS, FRAGMENTS, EVERY = 20, 5, 50
# Seconds between two requests to the board.
WAIT = 0.02


def main(runs: int = RUNS, events: int = EVENTS_EACH) -> None:
    """Write synthetic runs and print the board's times in seconds.

    Args:
        runs: The number of runs.
        events: The number of events of each run.
    """
    refuse_below(1, runs=runs)
    # The third event of a run is its first evaluation, for which the measurement waits.
    refuse_below(3, events=events)
    with TemporaryDirectory() as folder:
        for name, value in measure_board(Path(folder), runs, events).items():
            print_line(f"{name:<50}{value:.3g}")


def measure_board(folder: Path, runs: int, events: int) -> dict[str, float]:
    """Return the board's times in seconds and its memory in megabytes, by name.

    Args:
        folder: An empty folder.
        runs: The number of runs.
        events: The number of events of each run.
    """
    model = folder / "model"
    run(
        method="fed-raa",
        engine="local",
        quiet=True,
        out=model,
        clients=CLIENTS,
        fragments=FRAGMENTS,
        hidden=(16,),
        updates=3,
    )
    for i in range(runs):
        write_run(folder / "runs" / f"run-{i:03d}", (model / CONFIG).read_text(), events, i)
    size = sum(path.stat().st_size for path in folder.rglob(EVENTS))
    began = time.perf_counter()
    with serve_board(folder / "runs") as address:
        results = {"logs, MB": size / 1e6, "until the address": time.perf_counter() - began}
        first = poll_until(address, lambda answer: _has_metrics(answer, runs))
        results["until all runs and their last metrics"] = time.perf_counter() - began
        ids = first["ids"]
        six = "&".join(f"run={name}" for name in ids[:6])
        results["curves of six runs"] = time_request(f"{address}curves?x=t&y=accuracy&{six}")
        poll_until(address, lambda answer: answer["read"] == answer["size"] > 0)
        results["until all logs are read"] = time.perf_counter() - began
        results["curves of six runs over bytes"] = time_request(f"{address}curves?x=bytes&y=accuracy&{six}")
        results["details of a run, the first"] = time_request(f"{address}details?run={ids[0]}")
        results["details of a run, the next"] = time_request(f"{address}details?run={ids[-1]}")
        results["details of a part of a run"] = time_request(f"{address}details?run={ids[-1]}&from=1&to=1.5")
        version = poll_until(address, lambda answer: True)["version"]
        results["changes, without any"] = time_request(f"{address}runs?since={version}")
        results["from a line to the board"] = measure_delay(folder / "runs" / ids[-1], address, version)
    results["memory of the board, MB"] = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss / 1e3
    return results


def _has_metrics(answer: dict[str, Any], runs: int) -> bool:
    return len(answer["rows"]) == runs and all(row.get("last") for row in answer["rows"])


def write_run(directory: Path, config: str, events: int, seed: int) -> None:
    """Write the files of an interrupted run with synthetic events.

    Args:
        directory: The run directory.
        config: The text of config.json.
        events: The number of events.
        seed: The seed of the events.
    """
    directory.mkdir(parents=True)
    (directory / CONFIG).write_text(config)
    rows = ["step,t,wall,accuracy,loss,client_mean,client_std,client_worst"]
    with (directory / EVENTS).open("w") as stream:
        for seq, event in enumerate(islice(make_events(seed), events)):
            stream.write(json.dumps({"seq": seq, **event}, separators=(",", ":")) + "\n")
            if event["kind"] == "eval":
                rows.append(",".join(repr(event[name]) for name in rows[0].split(",")))
    (directory / EVALS).write_text("\n".join(rows) + "\n")


def make_events(seed: int) -> Iterator[dict[str, Any]]:
    """Yield synthetic dispatches, commits and evaluations."""
    for task in count():
        t = 2e-3 * task
        header = {"t": t, "wall": t, "task": task, "client": task % CLIENTS, "fragment": (task + seed) % FRAGMENTS}
        decision = {
            "version": task,
            "step": task,
            "cost": 1e-3,
            "feasible_fragments": list(range(FRAGMENTS)),
            "fragment_updates": [0] * FRAGMENTS,
        }
        yield {"kind": "dispatch", **header, **decision, "bytes_down": 1000}
        outcome = {"base_version": 0, "version": task, "staleness": task % 7, "staleness_total": 3, "weight": 0.6}
        cost = {"bytes_up": 1000, "samples": 90, "flops": 1e6, "train_loss": 0.5}
        yield {"kind": "commit", **header, "t": t + 1e-3, **outcome, **cost}
        if task % EVERY == 0:
            share = 1 - 0.9 / (1 + task / 500 + seed / 100)
            metrics = {"accuracy": share, "loss": 1 - share, "client_mean": share, "client_std": 0.1}
            yield {"kind": "eval", "t": t + 1e-3, "wall": t, "step": task, **metrics, "client_worst": share}


@contextmanager
def serve_board(folder: Path) -> Iterator[str]:
    """Start a board in a separate process and yield its address."""
    command = [sys.executable, "-m", "fedraa", "board", str(folder)]
    with start_tree(command, stdout=subprocess.PIPE, text=True) as board:
        assert board.stdout is not None
        yield board.stdout.readline().split(" shown at ")[1].split()[0]


def poll_until(address: str, enough: Any) -> dict[str, Any]:
    """Request the list of runs again and again, and return the first answer for which `enough(answer)` is true."""
    while True:
        answer = request_json(f"{address}runs?since=0")
        if enough(answer):
            return answer
        time.sleep(WAIT)


def measure_delay(directory: Path, address: str, version: int) -> float:
    """Append a line to a run's log and return the seconds until the board shows it.

    Args:
        directory: The run directory.
        address: The board's address.
        version: The version number in the board's last answer.
    """
    before = (directory / EVENTS).read_text().count("\n")
    began = time.perf_counter()
    with (directory / EVENTS).open("a") as stream:
        stream.write(json.dumps({"seq": before, "kind": "checkpoint", "t": 99.0, "wall": 99.0, "step": 9999}) + "\n")
    while not any(row["step"] == 9999 for row in request_json(f"{address}runs?since={version}")["rows"]):
        time.sleep(WAIT)
    return time.perf_counter() - began


def time_request(address: str) -> float:
    """Return the seconds that the board takes to answer a request."""
    began = time.perf_counter()
    request_json(address)
    return time.perf_counter() - began


def request_json(address: str) -> dict[str, Any]:
    """Return the board's JSON answer to a request."""
    with urlopen(address, timeout=60) as answer:
        return dict(json.loads(answer.read()))
