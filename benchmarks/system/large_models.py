"""What the server of a large model takes: seconds per update against a copy of the model, and memory.

`python -m benchmarks large_models` writes `benchmarks/results/large_models.csv`. Every method has a process of its own,
in which updates of a model of 294 MB go through the server as the loop has them: judged, then taken in. The copy is
`params.copy()` of the whole model; beside it is one into memory that is there already. Of all times the table has the
least, for others may be at work on the machine: CPU seconds, over all threads, suffer less from that. Updates are those
of the largest submodel, within a round; those that end a round are beside them.

Memory is in buffers of the model: what the process holds at most while updates come in, of which some is the model
itself, the update, what clients hold and the method's state; what a worker holds at most; and a checkpoint.
"""

import csv
import json
import os
import subprocess
import sys
import time
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np

from benchmarks.system.throughput import synthetic
from fedraa.config.experiment import Experiment
from fedraa.engine.build import build
from fedraa.engine.run_spec import RunSpec
from fedraa.messages import Update, Vector
from fedraa.rundir.checkpoint import Saver
from fedraa.server.base import Server
from fedraa.server.bounds import Bounds

RESULTS = Path(__file__).parents[1] / "results" / "large_models.csv"
METHODS = ("fedavg", "fed-raa", "heterofl", "fedbuff", "scaffold")
HIDDEN = (8192, 8192)  # 73.6 million parameters
CLIENTS = 4


def main(methods: tuple[str, ...] = METHODS, hidden: tuple[int, ...] = HIDDEN, repeats: int = 3) -> None:
    """Measure, and write the table."""
    lines = []
    for method in methods:
        code = f"from benchmarks.system.large_models import measured; measured({method!r}, {hidden!r}, {repeats})"
        done = subprocess.run([sys.executable, "-c", code], check=True, stdout=subprocess.PIPE, text=True)
        lines.append(json.loads(done.stdout.splitlines()[-1]))
        sys.stdout.write(done.stdout)
    with RESULTS.open("w", newline="") as file:
        table = csv.DictWriter(file, list(lines[0]))
        table.writeheader()
        table.writerows(lines)


def measured(method: str, hidden: tuple[int, ...], repeats: int) -> None:
    """Print one line of the table, as JSON."""
    spec = build(experiment(method, hidden), dataset=synthetic(400))
    model, warm = spec.params.nbytes, np.ones_like(spec.params)
    start = resident()
    server = spec.server(lambda *_, **__: None)
    reset_peak()
    seconds, ends, copies, into_warm, cpu, copies_cpu = updates(spec, server, repeats, warm)
    peak = resident("VmHWM") - start
    kept = spec.method.update.memory(len(spec.params), CLIENTS)
    line = {
        "method": method,
        "megabytes": round(model / 1e6, 1),
        "cores": len(os.sched_getaffinity(0)),
        "copy_seconds": round(min(copies), 4),
        "copy_in_place_seconds": round(min(into_warm), 4),
        "update_seconds": round(min(seconds), 4),
        "ratio": round(min(seconds) / min(copies), 2),
        "cpu_ratio": round(min(cpu) / min(copies_cpu), 2),
        "ratio_to_copy_in_place": round(min(seconds) / min(into_warm), 2),
        "ratio_with_end_of_round": round(min(ends) / min(copies), 2) if ends else "",
        "server_peak": round(peak / model, 2),
        "method_state": round(kept / model, 2),
        **saving(server, model),
        "worker_peak": round(worker(spec) / model, 2),
    }
    sys.stdout.write(json.dumps(line) + "\n")


def saving(server: Server, model: int) -> dict[str, float]:
    """How large a checkpoint is, how long it holds the run up, and how long it takes to be written."""
    with TemporaryDirectory() as folder:
        saver, started = Saver(), time.perf_counter()
        saver.save(Path(folder), 1, server.state())
        held = time.perf_counter() - started
        saver.wait()
        size = sum(path.stat().st_size for path in Path(folder).iterdir())
        return {
            "checkpoint": round(size / model, 2),
            "checkpoint_holds_up": round(held, 3),
            "checkpoint_seconds": round(saver.seconds, 2),
        }


def worker(spec: RunSpec) -> float:
    """Bytes that training the largest submodel takes at most."""
    server = spec.server(lambda *_, **__: None)
    task = max((server.assign(client, 0.0) for client in server.begin()), key=lambda task: task.size)
    x, y = spec.data.client(task.client)
    start = resident()
    reset_peak()
    spec.worker_spec.trainer("cpu").train(task, x, y)
    return resident("VmHWM") - start


def resident(what: str = "VmRSS") -> float:
    """Bytes that this process holds, or has held at most."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return 1024 * float(next(line.split()[1] for line in lines if line.startswith(what)))


def reset_peak() -> None:
    """From here on, what was held at most counts."""
    Path("/proc/self/clear_refs").write_text("5")


def experiment(method: str, hidden: tuple[int, ...]) -> Experiment:
    asynchronous = method in ("fed-raa", "fedbuff")
    return Experiment(
        method=method,
        clients=CLIENTS,
        capabilities="1:0.5,3:0.5",
        hidden=hidden,
        local_steps=1,
        batch_size=2,
        engine="local",
        quiet=True,
        **({"updates": 1000} if asynchronous else {"rounds": 1000}),
        **({"fragments": 3} if method == "fed-raa" else {}),
    )


def updates(spec: RunSpec, server: Server, repeats: int, warm: Vector) -> tuple[list[float], ...]:
    """Seconds of each update of the largest submodel within a round, of each that ends one, and of each copy."""
    bounds, taken, copies = Bounds(), list[tuple[int, bool, float, float]](), list[float]()
    into_warm, copies_cpu = list[float](), list[float]()
    waiting = list(server.begin())
    for _ in range(repeats * CLIENTS):
        task = server.assign(waiting.pop(0), 0.0)
        new = task.params + np.float32(1e-3)
        update = Update(task.id, task.client, task.fragment, task.version, new, 1, 0.5, 0.0)
        before, started, used = server.step, time.perf_counter(), time.process_time()
        if (wrong := bounds.refuse(update, task)) is not None:
            raise RuntimeError(wrong)
        waiting += server.commit(update, 0.0)
        end = server.step > before and not spec.method.asynchronous
        taken.append((task.size, end, time.perf_counter() - started, time.process_time() - used))
        del task, update, new
        started = time.perf_counter()
        np.copyto(warm, spec.params)
        into_warm.append(time.perf_counter() - started)
        started, used = time.perf_counter(), time.process_time()
        copy = spec.params.copy()
        copies.append(time.perf_counter() - started)
        copies_cpu.append(time.process_time() - used)
        del copy
    largest = max(size for size, *_ in taken)
    within, ends = (
        [took for size, at_end, took, _ in taken if size == largest and at_end is end] for end in (False, True)
    )
    cpu = [used for size, at_end, _, used in taken if size == largest and not at_end]
    return within, ends, copies, into_warm, cpu, copies_cpu
