"""Test fedraa on a GPU, and time its rounds beside pfl-research and bare PyTorch.

`python -m benchmarks gpu` takes about 8 minutes on an H200 and writes `benchmarks/results/gpu.csv`. fedraa trains in
this process with several tasks in one batched computation (`--vmap-batch`), and on Ray with several workers on the GPU.
The column `same_bits` states if two runs have equal models. Without a GPU, the workloads are smaller and use the CPU.
"""

import statistics
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path
from tempfile import TemporaryDirectory
from threading import Event
from typing import Literal

import torch
from rich.console import Console

from actors.cluster.placement import gpu_share
from actors.pool.executor import RayExecutor
from benchmarks.system.gpu_work import LR, WORKLOADS, BareLoop, Workload, time_pfl
from benchmarks.system.option_checks import refuse_below, refuse_unknown_names
from benchmarks.system.rows import open_table, print_rows, write_table
from benchmarks.system.throughput import start_cluster
from benchmarks.system.trials import CORES
from fedraa.callbacks import Callback, Progress
from fedraa.callbacks.callback_list import CallbackList
from fedraa.config.experiment import Experiment
from fedraa.devices.worker_groups import WorkerGroup
from fedraa.engine.build import build_run
from fedraa.engine.executor import Executor, LocalExecutor
from fedraa.engine.factories import make_worker_spec
from fedraa.engine.process_guard import exclusive_process
from fedraa.engine.run_spec import RunSpec
from fedraa.engine.session import RunSession
from fedraa.engine.worker_spec import choose_device
from fedraa.errors import RunFailed
from fedraa.rundir.history import History

ROOT = Path(__file__).parents[2]
RESULTS = ROOT / "benchmarks" / "results" / "gpu.csv"
STACKS = (1, 8, 32, 128)
WORKERS = (1, 2, 4)
ON_RAY = ("mlp-100", "cnn-cifar10")


def main(
    device: Literal["auto", "cpu", "cuda"] = "auto",
    workloads: tuple[str, ...] = tuple(WORKLOADS),
    stacks: tuple[int, ...] = STACKS,
    workers: tuple[int, ...] = WORKERS,
    tests: bool = True,
    out: Path = RESULTS,
) -> None:
    """Run the tests marked `cuda`, measure every workload, and print and write a table.

    Args:
        device: The device.
        workloads: The names of the workloads.
        stacks: The numbers of tasks that are trained in one batched computation, at most the tasks of a round.
        workers: The numbers of workers on Ray; none to skip Ray.
        tests: Run the tests marked `cuda` first, if the device is a GPU.
        out: The CSV file to write.
    """
    refuse_unknown_names("workloads", workloads, WORKLOADS)
    refuse_below(1, stacks=stacks)
    if workers:
        refuse_below(1, workers=workers)
    open_table(out, ("workload", "system"))
    chosen = choose_device(device)
    failed = tests and chosen == "cuda" and not run_tests()
    rows: list[dict[str, str]] = []
    for name in workloads:
        work = WORKLOADS[name] if chosen == "cuda" else shrink(WORKLOADS[name])
        for row in measure_workload(work, chosen, stacks, workers if work.name in ON_RAY else ()):
            Console().print(", ".join(f"{name} {value}" for name, value in row.items() if value))
            rows.append(row)
            write_table(out, list(rows[0]), rows)
    print_rows(rows, width=140)
    if failed:
        raise RunFailed("tests", "some tests marked cuda failed", hint="their output is above")


def run_tests() -> bool:
    """Run the tests marked `cuda` and return True if all passed."""
    command = [sys.executable, "-m", "pytest", "-q", "-m", "cuda", "--numprocesses", "auto", "--dist", "loadgroup"]
    return subprocess.run([*command, "tests/cuda"], cwd=ROOT, check=False).returncode == 0


def shrink(work: Workload) -> Workload:
    """Return a smaller workload, which one CPU core trains in about a second."""
    cohort = min(work.cohort, 10)
    return replace(work, clients=2 * cohort, cohort=cohort, samples=2 * work.batch, batch=min(work.batch, 10), rounds=1)


def measure_workload(
    work: Workload, device: str, stacks: tuple[int, ...], workers: tuple[int, ...]
) -> Iterator[dict[str, str]]:
    """Measure a workload in bare PyTorch, in pfl-research and in fedraa, and yield the table rows.

    Args:
        work: The workload.
        device: The device.
        stacks: The numbers of tasks that are trained together.
        workers: The numbers of workers on Ray.
    """
    loop = BareLoop(work, device)
    loop.round()
    bare = [loop.round() for _ in range(work.rounds)]
    floor = statistics.median(bare)
    yield make_row(work, device, "bare PyTorch", bare, floor)
    if not work.bf16:
        pfl = time_pfl(work, work.rounds)
        if pfl:
            yield make_row(work, device, "pfl-research", pfl, floor)
    digests: dict[int, str] = {}
    for stack in sorted({min(stack, work.cohort) for stack in stacks}):
        runs = [run_rounds(work, device, 0, stack) for _ in range(2)]
        digests[stack] = runs[0].digest
        yield make_fedraa_row(work, device, "fedraa, this process", stack, runs, floor)
    if workers:
        with start_cluster():
            for count, stack in [*((count, min(digests)) for count in workers), (max(workers), max(digests))]:
                runs = [run_rounds(work, device, count, stack)]
                system = f"fedraa, {count} on Ray"
                yield make_fedraa_row(work, device, system, stack, runs, floor, digests[stack])


@dataclass(frozen=True)
class Measured:
    """A measured run.

    Attributes:
        seconds: The seconds of each round except the first.
        digest: The digest of the trained model.
        gpu_mb: The GPU memory in MB.
    """

    seconds: list[float]
    digest: str
    gpu_mb: float


def make_fedraa_row(
    work: Workload,
    device: str,
    system: str,
    stack: int,
    runs: list[Measured],
    floor: float,
    expected: str | None = None,
) -> dict[str, str]:
    """Return the table row of one configuration of fedraa.

    Args:
        work: The workload.
        device: The device.
        system: The name of the configuration.
        stack: The number of tasks that are trained together.
        runs: The runs of this configuration.
        floor: The seconds of a round in the bare loop.
        expected: The expected digest of the model; None to compare only the runs with each other.
    """
    digests = {run.digest for run in runs} | ({expected} if expected else set())
    return make_row(work, device, system, [lap for run in runs for lap in run.seconds], floor) | {
        "vmap_batch": str(stack),
        "gpu_mb": f"{max(run.gpu_mb for run in runs):.0f}" if device == "cuda" else "",
        "same_bits": "yes" if len(digests) == 1 else "no",
    }


def make_row(work: Workload, device: str, system: str, seconds: list[float], floor: float) -> dict[str, str]:
    """Return a table row with the median, minimum and maximum of the round times.

    Args:
        work: The workload.
        device: The device.
        system: The name of the system that trained.
        seconds: The seconds of each round.
        floor: The seconds of a round in the bare loop.
    """
    return {
        "device": torch.cuda.get_device_name() if device == "cuda" else "CPU",
        "torch": torch.__version__,
        "workload": work.name,
        "system": system,
        "vmap_batch": "",
        "round_ms": f"{1000 * statistics.median(seconds):.1f}",
        "fastest_ms": f"{1000 * min(seconds):.1f}",
        "slowest_ms": f"{1000 * max(seconds):.1f}",
        "ratio": f"{statistics.median(seconds) / floor:.2f}",
        "gpu_mb": "",
        "same_bits": "",
    }


def run_rounds(work: Workload, device: str, workers: int, stack: int) -> Measured:
    """Execute a run, and return its times and the GPU memory of all its processes.

    Args:
        work: The workload.
        device: The device.
        workers: The number of workers on Ray, or 0 for training in this process.
        stack: The number of tasks that are trained together.
    """
    laps = Laps()
    experiment = Experiment(
        method="fedavg",
        clients=work.clients,
        partition="iid",
        participation=f"sample:{work.cohort}",
        local_epochs=1,
        batch_size=work.batch,
        lr=LR,
        momentum=0.0,
        rounds=work.rounds + 1,
        eval_every=work.rounds + 1,
        checkpoint_every=work.rounds + 1,
        engine="ray" if workers else "local",
        workers=workers or None,
        device=device,
        vmap_batch=stack,
        bf16=work.bf16,
        quiet=True,
    )
    torch.manual_seed(0)
    spec = build_run(experiment, work.make_model(), work.dataset())
    free_before = free_gpu_bytes(device)
    with exclusive_process(), open_executor(spec, device, workers) as executor, TemporaryDirectory() as directory:
        callbacks = CallbackList([laps], progress_seconds=0.0)
        RunSession(spec, Path(directory), executor, Event(), callbacks).execute()
        used = free_before - free_gpu_bytes(device)
        digest = str(History(directory).summary["model_sha256"])
    return Measured(laps.seconds(), digest, used / 1e6)


@contextmanager
def open_executor(spec: RunSpec, device: str, workers: int) -> Iterator[Executor]:
    """Create the executor of a run, and close it at the end of the block.

    Args:
        spec: The run.
        device: The device.
        workers: The number of workers on Ray, or 0 for training in this process.
    """
    if not workers:
        worker_spec = make_worker_spec(spec)
        evaluator = worker_spec.evaluator(spec.evaluation_data, device)
        yield LocalExecutor(worker_spec.trainer(device), evaluator, spec.data, spec.experiment.vmap_batch)
        if device == "cuda":
            torch.cuda.empty_cache()
        return
    # The workers share the `CORES` cores of the cluster.
    needs = {"CPU": CORES / workers, "GPU": gpu_share(device, workers)}
    executor = RayExecutor.of(spec, groups=(WorkerGroup(workers, needs),))
    try:
        executor.await_workers(120)
        yield executor
    finally:
        executor.close()


def free_gpu_bytes(device: str) -> int:
    """Return the free memory of the GPU in bytes; 0 for a CPU."""
    if device != "cuda":
        return 0
    torch.cuda.empty_cache()
    return int(torch.cuda.mem_get_info()[0])


class Laps(Callback):
    """A callback that records the time at which each round ends."""

    blocking = False

    def __init__(self) -> None:
        self._ends: dict[int, float] = {}

    def on_progress(self, progress: Progress) -> None:
        if progress.step not in self._ends:
            self._ends[progress.step] = time.perf_counter()

    def seconds(self) -> list[float]:
        """The duration in seconds of each round except the first."""
        ends = [end for step, end in sorted(self._ends.items()) if step]
        return [after - before for before, after in pairwise(ends)]
