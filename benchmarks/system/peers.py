"""Compare fedraa with bare PyTorch, pfl-research, Flower and fluke on the same rounds of FedAvg.

One workload is asynchronous. It has FedAsync, which the other frameworks lack, and a round is as many updates as there
are clients.

`python -m benchmarks peers` makes a virtual environment for each framework, runs every workload several times with all
systems in turn, and writes `benchmarks/results/peers.csv`. Each measurement is a process that trains all rounds of a
workload.

The time of a round is the median over all rounds except the first. The start-up is the time until the end of the first
round, minus the time of a round. The memory is the peak of the private memory of the process and all its child
processes. The system `bare` is two processes of plain PyTorch. The column `ratio` is a system's time divided by the
time of `bare`. All systems take the same number of SGD steps on the same samples. Systems differ in the order of the
samples and in the clients of a round.
"""

import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
from rich.console import Console

from benchmarks.system.option_checks import refuse_below, refuse_unknown_names
from benchmarks.system.peer_programs.peer_work import Work
from benchmarks.system.processes import list_descendants, start_tree, unique_bytes
from benchmarks.system.rows import open_table, print_rows, write_table
from fedraa.errors import RunFailed

ROOT = Path(__file__).parents[2]
RESULTS = ROOT / "benchmarks" / "results" / "peers.csv"
PROGRAMS = Path(__file__).parent / "peer_programs"
# The seconds between two looks at the memory. At first they are short, because a process may end soon.
# A look at a system on Ray takes 0.05 s of CPU time. More frequent looks at its rounds would slow it down.
FIRST_WAIT_S, LONGEST_WAIT_S = 0.2, 2.0
LONGEST_S = 900


@dataclass(frozen=True)
class System:
    """A framework to measure.

    Attributes:
        program: The framework's program in `peer_programs`, with arguments.
        requirements: The packages of the framework's virtual environment; empty if it needs no separate environment.
        asynchronous: True if the program also runs asynchronous workloads.
    """

    program: tuple[str, ...]
    requirements: tuple[str, ...] = ()
    asynchronous: bool = False

    @property
    def environment(self) -> str:
        return self.requirements[0].partition("==")[0].partition("[")[0] if self.requirements else ""


@dataclass(frozen=True)
class Measured:
    """The measurements of one process.

    Attributes:
        round_s: The median seconds of a round.
        start_s: The seconds of the start-up.
        memory_mb: The peak memory in MB.
        accuracy: The final accuracy.
    """

    round_s: float
    start_s: float
    memory_mb: float
    accuracy: float


TORCHRUN = ("-m", "torch.distributed.run", "--nproc_per_node", "2", "--master_addr", "127.0.0.1")
PFL = ("pfl==0.6.0",)
SYSTEMS = {
    "bare": System(("run_bare.py",), asynchronous=True),
    "fedraa-local": System(("run_fedraa.py", "local", "1"), asynchronous=True),
    "fedraa-local-2": System(("run_fedraa.py", "local", "1", "2"), asynchronous=True),
    "fedraa-local-stacked": System(("run_fedraa.py", "local", "10")),
    "fedraa-local-2-stacked": System(("run_fedraa.py", "local", "10", "2")),
    "fedraa-ray": System(("run_fedraa.py", "ray", "1", "2"), asynchronous=True),
    "pfl": System(("run_pfl.py",), PFL),
    "pfl-2": System((*TORCHRUN, "run_pfl.py"), PFL),
    "flower": System(("run_flower.py",), ("flwr[simulation]==1.42.0",)),
    "fluke": System(("run_fluke.py",), ("fluke-fl==0.8.1",)),
}
# Each workload has the shape of a sample and the fields of Work.
MNIST = (1, 28, 28)
CIFAR = (3, 32, 32)
CNN: dict[str, object] = {"convolutions": (32, 64), "hidden": (128,), "lr": 0.2}
WORKLOADS: dict[str, tuple[tuple[int, ...], dict[str, object]]] = {
    # The FLUTE paper compares frameworks with this workload.
    "lr-mnist": (MNIST, {"clients": 1000, "cohort": 10, "samples": 60, "batch": 10, "rounds": 100, "hidden": ()}),
    "mlp-10": (MNIST, {"clients": 10, "cohort": 10, "samples": 6000, "batch": 32, "rounds": 10, "hidden": (200,)}),
    "mlp-100": (MNIST, {"clients": 100, "cohort": 100, "samples": 600, "batch": 32, "rounds": 10, "hidden": (200,)}),
    "mlp-1000": (MNIST, {"clients": 1000, "cohort": 1000, "samples": 60, "batch": 32, "rounds": 10, "hidden": (200,)}),
    # The benchmark of pfl-research on CIFAR-10 has these numbers of clients and samples.
    "cnn-50": (CIFAR, {"clients": 1000, "cohort": 50, "samples": 50, "batch": 10, "rounds": 6, **CNN}),
    # The benchmark of BlazeFL has 100 clients and five epochs.
    "cnn-100": (CIFAR, {"clients": 100, "cohort": 100, "samples": 20, "batch": 10, "epochs": 5, "rounds": 3, **CNN}),
    "asynchronous": (
        MNIST,
        {
            **{"clients": 100, "cohort": 100, "samples": 60, "batch": 32, "rounds": 10, "hidden": (200,), "lr": 0.5},
            "asynchronous": True,
        },
    ),
    "clients-10000": (
        (1, 8, 8),
        {"clients": 10_000, "cohort": 1000, "samples": 10, "batch": 10, "lr": 0.5, "rounds": 6, "hidden": (32,)},
    ),
    "clients-100000": (
        (1, 8, 8),
        {"clients": 100_000, "cohort": 1000, "samples": 10, "batch": 10, "lr": 0.5, "rounds": 6, "hidden": (32,)},
    ),
}
COLUMNS = (
    *("workload", "system", "version", "runs", "round_ms", "fastest_ms", "slowest_ms", "ratio"),
    *("start_s", "memory_mb", "accuracy"),
)


def main(
    workloads: tuple[str, ...] = tuple(WORKLOADS),
    systems: tuple[str, ...] = tuple(SYSTEMS),
    repeats: int = 3,
    environments: Path = ROOT / "build" / "peers",
    out: Path = RESULTS,
) -> None:
    """Measure systems, and print and write a table.

    Existing rows of other workloads and systems are kept.

    Args:
        workloads: The names of the workloads.
        systems: The names of the systems; `bare` is always measured.
        repeats: The number of processes per system and workload.
        environments: The folder for the virtual environments of other frameworks. Missing environments are made.
        out: The CSV file to write.
    """
    refuse_unknown_names("workloads", workloads, WORKLOADS)
    refuse_unknown_names("systems", systems, SYSTEMS)
    refuse_below(1, repeats=repeats)
    rows = {(row["workload"], row["system"]): row for row in open_table(out, COLUMNS)}
    names = list(dict.fromkeys(["bare", *systems]))
    pythons = {name: find_python(SYSTEMS[name], environments) for name in names}
    for workload in workloads:
        if WORKLOADS[workload][1].get("asynchronous"):
            able = {name: python for name, python in pythons.items() if SYSTEMS[name].asynchronous}
        else:
            able = pythons
        for row in measure_workload(workload, able, repeats):
            rows[row["workload"], row["system"]] = row
        write_table(out, COLUMNS, rows.values())
    print_rows(list(rows.values()), width=160)


def find_python(system: System, environments: Path) -> Path:
    """Return the Python interpreter of a system. Make its virtual environment if it does not exist."""
    if not system.requirements:
        return Path(sys.executable)
    folder = environments / system.environment
    python = folder / "bin" / "python"
    if not (folder / "ready").exists():
        Console().print(f"installing {', '.join(system.requirements)} in {folder}")
        subprocess.run([sys.executable, "-m", "venv", folder], check=True)
        install = [str(python), "-m", "pip", "install", "--quiet", "torch==2.13.0", *system.requirements]
        subprocess.run(install, check=True)
        (folder / "ready").touch()
    return python


def measure_workload(name: str, pythons: dict[str, Path], repeats: int) -> Iterator[dict[str, str]]:
    """Measure a workload, and yield one row per system.

    The systems take turns, so that disturbances of the machine affect all of them.

    Args:
        name: The name of the workload.
        pythons: The Python interpreter of each system.
        repeats: The number of processes per system.
    """
    shape, fields = WORKLOADS[name]
    with TemporaryDirectory() as folder:
        work = Work(**{"folder": folder, "lr": 0.05, "epochs": 1, **fields})  # type: ignore[arg-type]
        write_data(work, shape)
        measured: dict[str, list[Measured]] = {system: [] for system in pythons}
        for repeat in range(repeats):
            for system, python in pythons.items():
                result = run_program(system, python, work)
                measured[system].append(result)
                Console().print(
                    f"{name}, {system}, {repeat + 1} of {repeats}: {1000 * result.round_s:.1f} ms per round, "
                    f"start-up {result.start_s:.1f} s, {result.memory_mb:.0f} MB, accuracy {result.accuracy:.3f}"
                )
    floor = statistics.median(one.round_s for one in measured["bare"])
    for system, results in measured.items():
        seconds = [one.round_s for one in results]
        yield {
            "workload": name,
            "system": system,
            "version": find_version(SYSTEMS[system]),
            "runs": str(repeats),
            "round_ms": f"{1000 * statistics.median(seconds):.1f}",
            "fastest_ms": f"{1000 * min(seconds):.1f}",
            "slowest_ms": f"{1000 * max(seconds):.1f}",
            "ratio": f"{statistics.median(seconds) / floor:.2f}",
            "start_s": f"{statistics.median(one.start_s for one in results):.1f}",
            "memory_mb": f"{statistics.median(one.memory_mb for one in results):.0f}",
            "accuracy": f"{statistics.median(one.accuracy for one in results):.3f}",
        }


def write_data(work: Work, shape: tuple[int, ...]) -> None:
    """Write random samples [n, *shape] of ten overlapping classes."""
    rng = np.random.default_rng(0)
    centers = rng.standard_normal((10, *shape), np.float32)
    # The distance between the classes grows with the square root of the number of values in a sample.
    noise = 0.35 * np.sqrt(np.prod(shape))
    for part, count in (("train", work.clients * work.samples), ("test", 2000)):
        labels = rng.integers(0, 10, count)
        inputs = (centers[labels] + noise * rng.standard_normal((count, *shape), np.float32)) / np.float32(noise)
        np.save(Path(work.folder) / f"x_{part}.npy", inputs.astype(np.float32))
        np.save(Path(work.folder) / f"y_{part}.npy", labels)


def run_program(system: str, python: Path, work: Work) -> Measured:
    """Run a system's program for a workload, and measure it.

    Args:
        system: The name of the system.
        python: The Python interpreter of the system.
        work: The workload.
    """
    description = Path(work.folder) / "work.json"
    description.write_text(json.dumps(asdict(work)))
    words = SYSTEMS[system].program
    program = next(number for number, word in enumerate(words) if word.endswith(".py"))
    script = str(PROGRAMS / words[program])
    command = [str(python), *words[:program], script, str(description), *words[program + 1 :]]
    # Each process has one thread, and no framework sends data to other machines.
    variables = {"OMP_NUM_THREADS": "1", "FLWR_TELEMETRY_ENABLED": "0", "WANDB_MODE": "disabled"}
    variables |= {"RAY_AUTH_MODE": "disabled", "PYTHONPATH": str(ROOT)}
    log = Path(work.folder) / "log"
    with log.open("w") as file:
        started = time.time()
        options = {"cwd": work.folder, "env": os.environ | variables, "stdout": file, "stderr": subprocess.STDOUT}
        with start_tree(command, **options) as process:
            peak = watch_memory(process, started + LONGEST_S)
    answers = [line for line in log.read_text().splitlines() if line.startswith('{"ends"')]
    if process.returncode or not answers:
        raise RunFailed(system, f"its program failed: {log.read_text()[-2000:]}")
    answer = json.loads(answers[-1])
    ends: Sequence[float] = answer["ends"]
    round_s = statistics.median(np.diff(ends).tolist())
    return Measured(round_s, ends[0] - started - round_s, peak / 1e6, answer["accuracy"])


def watch_memory(process: subprocess.Popen[bytes], deadline: float) -> float:
    """Wait for a process until `deadline`, a Unix time. Return the peak memory of its process tree in bytes."""
    peak = 0.0
    wait_s = FIRST_WAIT_S
    while process.poll() is None and time.time() < deadline:
        family = [process.pid, *list_descendants(process.pid)]
        peak = max(peak, sum(map(unique_bytes, family)))
        with suppress(subprocess.TimeoutExpired):
            process.wait(wait_s)
        wait_s = min(2 * wait_s, LONGEST_WAIT_S)
    return peak


def find_version(system: System) -> str:
    """Return the version of a system's framework; empty for bare PyTorch and fedraa."""
    return system.requirements[0].partition("==")[2] if system.requirements else ""
