"""Many short runs of ten methods. Each run has faults of one kind or of three kinds.

`python -m benchmarks chaos` adds one row per run to `benchmarks/results/chaos_runs.csv`. The server is in this process,
and two workers are on a private cluster. Every run must end with the same model and log as the undisturbed run, except
that its log may also have lines about faults. The kinds of faults:

    kill      a worker dies in a task
    hang      a worker never ends a task, and still answers pings
    freeze    a worker is stopped in a task (SIGSTOP)
    torn      the run is killed, its newest checkpoint or its log is truncated, and the run is resumed
    disk      the disk is full after a part of a log line; then it has space, and the run is resumed
    messages  Ray loses requests and answers of calls
"""

import logging
import threading
import time
import zlib
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from dataclasses import dataclass
from itertools import combinations
from multiprocessing import get_context
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
from rich.console import Console
from rich.table import Table

from actors.cluster.environment import set_variables
from actors.cluster.own_cluster import own_cluster
from actors.pool.liveness import Heartbeat
from benchmarks.system.chaos_files import full_disk
from benchmarks.system.chaos_kills import (
    CHOSEN,
    FREEZE,
    HANG,
    KILL,
    doomed_worker,
    judge_runs,
    log_size,
    make_experiment,
    tear_file,
)
from benchmarks.system.chaos_table import count_commits
from benchmarks.system.faults import PUSH, lose_messages
from benchmarks.system.killing import KillAt, Killed
from benchmarks.system.option_checks import refuse_unknown_names
from benchmarks.system.rows import add_row, open_table, read_rows
from benchmarks.system.warm_workers import PooledExecutor, WorkerPool
from fedraa.api import run
from fedraa.callbacks.callback_list import CallbackList
from fedraa.cli.console import print_line
from fedraa.devices.worker_groups import WorkerGroup
from fedraa.engine.build import build_run
from fedraa.engine.hang_detector import HangDetector
from fedraa.engine.session import RunSession
from fedraa.errors import RunFailed, Unwritable
from fedraa.rundir.file_names import SUMMARY
from fedraa.rundir.history import History

RESULTS = Path(__file__).parents[1] / "results" / "chaos_runs.csv"
TORN, DISK, MESSAGES = "torn", "disk", "messages"
FAULTS = (KILL, HANG, FREEZE, TORN, DISK, MESSAGES)
CELLS = tuple("+".join(faults) for size in (1, 3) for faults in combinations(FAULTS, size))
# For each kind of fault: the number of tasks that it disturbs.
COUNTS = {KILL: 1, HANG: 1, FREEZE: 1}
# Each round has six tasks.
ROUNDS = 6
LOST_PERCENT = 3
RUNS_PER_CLUSTER = 40
# The disk becomes full only after the log has this size, because the first checkpoint then exists. A run without a
# checkpoint cannot be resumed.
MIN_LOG_BYTES = 600
SHORT = Heartbeat(every=0.5, bound=3.0)
HUNG_AFTER_S = 6.0


@dataclass(frozen=True)
class Row:
    """The result of a run.

    Attributes:
        resumed: The number of resumptions.
        faults: The number of log lines of kind `fault`.
    """

    method: str
    cell: str
    number: int
    equal: bool
    lost: int
    doubled: int
    resumed: int
    faults: int
    seconds: float


def main(
    runs: int = 2,
    methods: tuple[str, ...] = CHOSEN,
    cells: tuple[str, ...] = CELLS,
    out: Path = RESULTS,
) -> None:
    """Execute the missing runs of each method with each kind of fault, and print a summary.

    Args:
        runs: The number of rows for each method and cell.
        methods: The methods.
        cells: The kinds of faults, or mixtures such as kill+hang+torn.
        out: The CSV file to which rows are added.
    """
    refuse_unknown_names("methods", methods, CHOSEN)
    refuse_unknown_names("cells", cells, CELLS)
    keys = [(number, cell, method) for number in range(runs) for cell in cells for method in methods]
    rows = open_table(out, ("number", "cell", "method"))
    present = {(int(row["number"]), row["cell"], row["method"]) for row in rows}
    for has_messages in (False, True):
        pending = [key for key in keys if key not in present and (MESSAGES in key[1]) == has_messages]
        for start in range(0, len(pending), RUNS_PER_CLUSTER):
            _make_rows_in_child(pending[start : start + RUNS_PER_CLUSTER], has_messages, out)
    Console().print(make_table(read_rows(out, Row)))


def _make_rows_in_child(keys: Sequence[tuple[int, str, str]], has_messages: bool, out: Path) -> None:
    """Execute runs in a child process.

    Runs with and without lost messages need separate processes, because a process can set Ray's percentage of lost
    messages only once.
    """
    with set_variables(lose_messages(LOST_PERCENT, PUSH) if has_messages else {}):
        process = get_context("spawn").Process(target=make_rows, args=(keys, out))
        process.start()
    process.join()
    if process.exitcode:
        raise RunFailed("chaos", f"the process of {len(keys)} runs ended with exit code {process.exitcode}")


def make_rows(keys: Iterable[tuple[int, str, str]], out: Path) -> None:
    """Execute runs on one cluster and add their rows to the table."""
    logging.getLogger("fedraa").setLevel(logging.ERROR)
    logging.getLogger("actors").setLevel(logging.ERROR)
    with TemporaryDirectory(prefix="fedraa-chaos-") as name, own_cluster(4):
        undisturbed: dict[str, Path] = {}
        pool = WorkerPool()
        for number, cell, method in keys:
            if method not in undisturbed:
                folder = Path(name) / method
                undisturbed[method] = run(make_experiment(method, folder, "local", ROUNDS), quiet=True).directory
            with TemporaryDirectory(prefix="fedraa-chaos-") as folder_name:
                row = make_run(pool, Path(folder_name), undisturbed[method], method, cell, number)
            add_row(out, row)
            print_line(str(row))


def make_run(pool: WorkerPool, folder: Path, undisturbed: Path, method: str, cell: str, number: int) -> Row:
    """Execute a run with faults on the running Ray cluster, and compare it with the undisturbed run.

    Args:
        pool: Workers that are already running.
        folder: An empty folder.
        undisturbed: The directory of the undisturbed run.
        method: The name of the method.
        cell: The names of the faults, joined by +.
        number: The number of the run, which seeds the faults' times.
    """
    started = time.monotonic()
    rng = np.random.default_rng([number, zlib.crc32(f"{cell} {method}".encode())])
    directory = folder / "run"
    directory.mkdir()
    marks = folder / "marks"
    marks.mkdir()
    faults = cell.split("+")
    worker = doomed_worker(_draw_tasks(faults, undisturbed, rng), marks)
    resumed = -1
    for attempt in _attempts(faults, undisturbed, rng):
        spec = build_run(make_experiment(method, directory, "ray", ROUNDS))
        executor = PooledExecutor.of(
            spec,
            pool=pool,
            groups=(WorkerGroup(2, {"CPU": 1}),),
            worker=worker,
            hang_detector=HangDetector(min_seconds=HUNG_AFTER_S, factor=0.0, unseen=HUNG_AFTER_S),
            heartbeat=SHORT,
        )
        resumed += 1
        try:
            with attempt as callbacks, suppress(Killed, Unwritable):
                session = RunSession(spec, directory, executor, threading.Event(), CallbackList(callbacks))
                session.execute(resume=resumed > 0)
        finally:
            executor.close()
        if TORN in faults and not (directory / SUMMARY).exists():
            tear_file(directory, rng)
    tally = judge_runs(1, [directory], undisturbed)
    return Row(
        method,
        cell,
        number,
        equal=tally.right == 1,
        lost=tally.lost,
        doubled=tally.doubled,
        resumed=resumed,
        faults=sum(line["kind"] == "fault" for line in History(directory).lines()),
        seconds=round(time.monotonic() - started, 1),
    )


def _draw_tasks(faults: Sequence[str], undisturbed: Path, rng: np.random.Generator) -> dict[int, str]:
    """Choose the tasks in which a worker is disturbed.

    Returns the kind of fault by task number.
    """
    disturbances = [fault for fault in faults for _ in range(COUNTS.get(fault, 0))]
    last = max(int(str(task)) for task in count_commits(undisturbed))
    places = np.linspace(0, last - 3, len(disturbances) + 1).astype(int)
    tasks = places[:-1] + rng.integers(0, 3, len(disturbances))
    return dict(zip(rng.permutation(tasks).tolist(), disturbances, strict=True))


def _attempts(
    faults: Sequence[str], undisturbed: Path, rng: np.random.Generator
) -> Iterator[AbstractContextManager[list[KillAt]]]:
    """Yield a context manager for each attempt to execute a run.

    Such a manager simulates a full disk, or yields a callback that kills the run. The last manager does nothing.
    """
    if DISK in faults:
        room = int(rng.integers(MIN_LOG_BYTES, log_size(undisturbed) - MIN_LOG_BYTES))
        yield _on_full_disk(room, int(rng.integers(1, 200)))
    if TORN in faults:
        commits = count_commits(undisturbed).total()
        yield nullcontext([KillAt(int(rng.integers(commits // 3, commits - 2)))])
    yield nullcontext([])


@contextmanager
def _on_full_disk(room: int, largest_write: int) -> Iterator[list[KillAt]]:
    with full_disk(room, largest_write):
        yield []


def make_table(rows: Sequence[Row]) -> Table:
    """Return a table with a row for each kind of fault and each mixture of kinds."""
    table = Table("faults", "methods", "runs", "equal bits", "lost", "doubled", "resumed", "fault lines", "s, mean")
    for cell in dict.fromkeys(row.cell for row in rows):
        of_cell = [row for row in rows if row.cell == cell]
        sums = Counter[str]()
        for row in of_cell:
            for name in ("equal", "lost", "doubled", "resumed", "faults", "seconds"):
                sums[name] += getattr(row, name)
        numbers = [len({row.method for row in of_cell}), len(of_cell)]
        numbers += [sums[name] for name in ("equal", "lost", "doubled", "resumed", "faults")]
        table.add_row(cell, *map(str, numbers), f"{sums['seconds'] / len(of_cell):.1f}")
    return table
