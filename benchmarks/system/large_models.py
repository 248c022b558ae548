"""Measure the time and memory of applying an update to a large model.

`python -m benchmarks large_models` writes `benchmarks/results/large_models.csv`. For every method, a separate process
runs a server that applies updates to a model of 294 MB. Only updates of the largest submodel count.

After each update, the model is copied three times. The time of the update is divided by the time of the fastest copy,
because other programs slow down both. The table has the median ratios for copies into new memory (`values.copy()`) and
into existing memory. It also has ratios of CPU seconds. Updates that end a round have separate columns, because they
include the server step. The column `buffers` has the number of buffers that an update writes. Each has the model's
size.

The memory columns are in multiples of the model's size. They are the server's state, an update, the additional memory
during an update or the end of a round, the peak of a worker, and a checkpoint.
"""

import json
import os
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np

from benchmarks.system.option_checks import refuse_below, refuse_unknown_names
from benchmarks.system.processes import call_in_child
from benchmarks.system.rows import open_table, write_table
from benchmarks.system.trials import synthetic_dataset
from fedraa.cli.console import print_line
from fedraa.client.trainer import Work
from fedraa.composition.registry import find_method
from fedraa.config.experiment import Experiment
from fedraa.engine.build import build_run
from fedraa.engine.factories import make_server, make_worker_spec
from fedraa.engine.run_spec import RunSpec
from fedraa.messages import Update, Vector
from fedraa.rundir.checkpoint import Saver
from fedraa.server.server import Server
from fedraa.server.update_checks import Bounds
from fedraa.vectors.chunked import count_cores

RESULTS = Path(__file__).parents[1] / "results" / "large_models.csv"
# For each method: the number of buffers that an update writes, each as large as the model. Float64 counts as two.
METHODS = {
    "fedavg": 1,
    "fedadam": 1,
    "mofedsam": 1,
    "heterofl": 1,
    "fed-raa": 1,
    "fedbuff": 1,
    "asyncfeded": 1,
    # An update writes the buffer of deltas and the client's stored delta.
    "ca2fl": 2,
    # An update writes the sum of deltas and the client's stored delta.
    "ram-fed": 2,
    # An update writes the sum of deltas and the sum of gradients.
    "mimelite": 2,
    # An update writes the sum of deltas, the client's control variate, and the change of the server's control variate.
    "scaffold": 3,
    # An update writes the client's stored gradient, the float64 sum of gradients and the model.
    "ringleader": 4,
    # An update writes the client's stored gradient, the float64 mean of gradients and the model.
    "ace": 4,
}
# The MLP has 73.6 million parameters.
HIDDEN = (8192, 8192)
CLIENTS = 4


def main(
    methods: tuple[str, ...] = tuple(METHODS),
    hidden: tuple[int, ...] = HIDDEN,
    repeats: int = 4,
    out: Path = RESULTS,
) -> None:
    """Measure the updates of these methods, and write the table line by line. Lines of other methods stay in the table.

    Args:
        methods: The methods to measure.
        hidden: The widths of the model's hidden layers.
        repeats: The number of updates per client.
        out: The CSV file.
    """
    refuse_unknown_names("methods", methods, METHODS)
    refuse_below(1, hidden=hidden, repeats=repeats)
    lines = {line["method"]: line for line in open_table(out, ("method", "megabytes"))}
    for method in methods:
        lines[method] = call_in_child(measure_method, method, hidden, repeats)
        print_line(json.dumps(lines[method]))
        write_table(out, list(lines[method]), (lines[name] for name in METHODS if name in lines))


def measure_method(method: str, hidden: tuple[int, ...], repeats: int) -> dict[str, object]:
    """Measure a method, and return its table row.

    Args:
        method: The name of the method.
        hidden: The widths of the model's hidden layers.
        repeats: The number of updates per client.
    """
    spec = build_run(make_experiment(method, hidden), dataset=synthetic_dataset(400))
    model, existing = spec.params.nbytes, np.ones_like(spec.params)
    start = memory_bytes()
    server = make_server(spec, lambda *_, **__: None)
    within, ends = measure_updates(spec, server, repeats, existing)
    buffers = METHODS[method]
    kept = max(one.kept for one in within + ends)
    update = max(one.update for one in within + ends)
    ratio = median(one.ratio for one in within)
    cpu_ratio = median(one.cpu_ratio for one in within)
    return {
        "method": method,
        "megabytes": round(model / 1e6, 1),
        "cores": count_cores(),
        "load": round(os.getloadavg()[0], 1),
        "updates": len(within),
        "update_megabytes": round(4e-6 * within[0].size, 1),
        "copy_seconds": round(median(one.copy for one in within), 4),
        "copy_in_place_seconds": round(median(one.copy_in_place for one in within), 4),
        "update_seconds": round(median(one.seconds for one in within), 4),
        "ratio": round(ratio, 2),
        "cpu_ratio": round(cpu_ratio, 2),
        "ratio_to_copy_in_place": round(median(one.seconds / one.copy_in_place for one in within), 2),
        "buffers": buffers,
        "ratio_per_buffer": round(ratio / buffers, 2),
        "cpu_ratio_per_buffer": round(cpu_ratio / buffers, 2),
        "ratio_with_end_of_round": _rounded_median([one.ratio for one in ends]),
        "cpu_ratio_with_end_of_round": _rounded_median([one.cpu_ratio for one in ends]),
        "server_state": round((kept - start) / model, 2),
        "update": round(update / model, 2),
        "server_besides": round((max(one.peak for one in within + ends) - kept - update) / model, 2),
        **measure_saving(server, model),
        "worker_peak": round(measure_worker(spec) / model, 2),
    }


def _rounded_median(values: Sequence[float]) -> float | str:
    """Return the rounded median of the values; an empty text if there are none."""
    if not values:
        return ""
    return round(median(values), 2)


def measure_saving(server: Server, model: int) -> dict[str, float]:
    """Write a checkpoint. Return its size, the time for which the server waits, and the total time of writing."""
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


def measure_worker(spec: RunSpec) -> float:
    """Train the largest submodel, and return the peak bytes of memory."""
    server = make_server(spec, lambda *_, **__: None)
    task = max((server.assign(client, 0.0) for client in server.begin()), key=lambda task: task.size)
    work = Work(task, *spec.data.client(task.client))
    start = memory_bytes()
    reset_peak()
    make_worker_spec(spec).trainer("cpu").train_all([work])
    return memory_bytes("VmHWM") - start


def memory_bytes(what: str = "VmRSS") -> float:
    """Return a memory size of this process in bytes: the line `what` of /proc/self/status."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return 1024 * float(next(line.split()[1] for line in lines if line.startswith(what)))


def reset_peak() -> None:
    """Reset the recorded peak memory of this process (VmHWM)."""
    Path("/proc/self/clear_refs").write_text("5")


def make_experiment(method: str, hidden: tuple[int, ...]) -> Experiment:
    """Return an experiment with one local step per task."""
    fields: dict[str, Any] = {"updates" if find_method(method).asynchronous else "rounds": 1000}
    if method == "fed-raa":
        fields["fragments"] = 3
    return Experiment(
        method=method,
        clients=CLIENTS,
        compute="1:0.5,3:0.5",
        hidden=hidden,
        local_steps=1,
        batch_size=2,
        engine="local",
        quiet=True,
        **fields,
    )


@dataclass(frozen=True)
class Taken:
    """The cost of applying one update, and of the copies after it.

    Attributes:
        size: The number of coordinates of the update's submodel.
        ends: True if the update ended a round.
        kept: The memory of the process in bytes before or after the update, whichever is larger.
        update: The size of the update in bytes.
        peak: The peak memory of the process in bytes while the update was applied.
        seconds: The time of applying the update.
        cpu: The CPU seconds of all threads for the update.
        copy: The seconds of a copy into new memory.
        copy_cpu: The CPU seconds of this copy.
        copy_in_place: The seconds of a copy into existing memory.
    """

    size: int
    ends: bool
    kept: float
    update: int
    peak: float
    seconds: float
    cpu: float
    copy: float
    copy_cpu: float
    copy_in_place: float

    @property
    def ratio(self) -> float:
        return self.seconds / self.copy

    @property
    def cpu_ratio(self) -> float:
        return self.cpu / self.copy_cpu


def measure_updates(spec: RunSpec, server: Server, repeats: int, existing: Vector) -> tuple[list[Taken], list[Taken]]:
    """Apply updates, and return the costs of the updates of the largest submodel.

    The first list has updates that do not end a round. The second list has updates that end a round, so that their
    costs include the server step.

    Args:
        spec: The run.
        server: The server of the run.
        repeats: The number of updates per client.
        existing: An array of the model's size. After each update, a copy into this array is timed.
    """
    bounds = Bounds()
    taken = list[Taken]()
    waiting = list(server.begin())
    for _ in range(repeats * CLIENTS):
        kept = memory_bytes()
        task = server.assign(waiting.pop(0), 0.0)
        new = task.params + np.float32(1e-3)
        extras = {name: np.full(task.size, 1e-3, np.float32) for name in task.asks}
        update = Update(task.id, task.client, task.fragment, task.version, new, 1, 0.5, 0.0, extras)
        reset_peak()
        step_before = server.step
        watch = Stopwatch()
        reason = bounds.judge_update(update, task)
        if reason is not None:
            raise RuntimeError(reason)
        waiting += server.commit(update, 0.0)
        seconds, cpu = watch.read()
        peak = memory_bytes("VmHWM")
        ends = server.step > step_before and not spec.method.asynchronous
        size = task.size
        nbytes = sum(buffer.nbytes for buffer in (new, *extras.values()))
        del task, update, new, extras
        kept = max(kept, memory_bytes())
        in_place, _ = time_fastest(partial(np.copyto, existing[:size], spec.params[:size]))
        copied, copied_cpu = time_fastest(existing[:size].copy)
        taken.append(
            Taken(
                size=size,
                ends=ends,
                kept=kept,
                update=nbytes,
                peak=peak,
                seconds=seconds,
                cpu=cpu,
                copy=copied,
                copy_cpu=copied_cpu,
                copy_in_place=in_place,
            )
        )
    largest_size = max(one.size for one in taken)
    largest = [one for one in taken if one.size == largest_size]
    return [one for one in largest if not one.ends], [one for one in largest if one.ends]


def time_fastest(work: Callable[[], object]) -> tuple[float, float]:
    """Call a function three times. Return the smallest real time and the smallest CPU time in seconds."""
    taken = []
    for _ in range(3):
        watch = Stopwatch()
        work()
        taken.append(watch.read())
    return min(seconds for seconds, _ in taken), min(cpu for _, cpu in taken)


class Stopwatch:
    """A stopwatch for real seconds and for the CPU seconds of this process."""

    def __init__(self) -> None:
        self._started = time.perf_counter()
        self._used = time.process_time()

    def read(self) -> tuple[float, float]:
        return time.perf_counter() - self._started, time.process_time() - self._used
