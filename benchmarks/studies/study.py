"""A study: a grid of experiments times seeds, run to its end however often it is interrupted.

A cell of the grid and a seed make one run, in one run directory whose name holds a digest of what the experiment
sets. What has finished is not run again, what was cut short goes on from its checkpoint (or begins again, if the code
has a new commit since), and a cell that was changed is another directory.
"""

import gc
import hashlib
import json
import multiprocessing
import os
import re
import shutil
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import dataclass, field
from multiprocessing.connection import wait
from pathlib import Path
from typing import Any, Literal

import pandas as pd

from benchmarks.studies.metrics import Metric
from fedraa.api import resume, run
from fedraa.config.experiment import Experiment
from fedraa.engine.resume import differs
from fedraa.engine.run_description import commit
from fedraa.errors import InputError, RunFailed
from fedraa.rundir.file_names import CONFIG, SUMMARY
from fedraa.rundir.history import History
from fedraa.rundir.run_lock import alone
from fedraa.settings.resolve import resolve

SEEDS = (0, 1, 2)


@dataclass(frozen=True)
class Cell:
    """One place in a study's table: a row under a heading, the experiment that fills it, what the paper has there.

    `paper` maps names of the study's metrics to the paper's values.
    """

    row: str
    experiment: Experiment
    column: str = ""
    paper: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True)
class Claim:
    """`better` is to beat `worse` in a metric, as `source` says; for what no number of the paper's table says."""

    better: str
    worse: str
    metric: str
    source: str


@dataclass(frozen=True)
class Study:
    """What is run and how it is told.

    `reference` is the row that the others are tested against. `notes` say what the paper leaves open and what
    this size leaves out. `along` is the horizontal axis of the curves; None draws none. Where the columns are
    values of one setting, of which each row may choose its best, `fixed` is the column that they share.
    """

    name: str
    title: str
    cells: Sequence[Cell]
    metrics: Sequence[Metric]
    reference: str
    notes: Sequence[str] = ()
    claims: Sequence[Claim] = ()
    seeds: Sequence[int] = SEEDS
    along: Literal["step", "t", "bytes"] | None = "step"
    fixed: str | None = None

    def __post_init__(self) -> None:
        places = [(cell.row, cell.column) for cell in self.cells]
        assert len(set(places)) == len(places), f"{self.name}: two cells in one place of the table"
        rows, names = {cell.row for cell in self.cells}, {metric.name for metric in self.metrics}
        assert {self.reference, *(row for claim in self.claims for row in (claim.better, claim.worse))} <= rows
        assert {name for cell in self.cells for name in cell.paper} <= names

    @property
    def rows(self) -> list[str]:
        return list(dict.fromkeys(cell.row for cell in self.cells))

    @property
    def columns(self) -> list[str]:
        return list(dict.fromkeys(cell.column for cell in self.cells))


@dataclass(frozen=True)
class Finished:
    """One run of a study; `failure` says why it has no end."""

    cell: Cell
    seed: int
    directory: Path
    failure: str | None


def execute(
    study: Study,
    out: Path,
    jobs: int,
    watch: Callable[[Finished, int], None],
    wanted: Callable[[Cell, int], bool] = lambda cell, seed: True,
) -> list[Finished]:
    """Runs what is not there yet, `jobs` runs at a time, several each in a process of its own; in the study's order.

    With `wanted`, only those cells and seeds.
    `watch` gets every run as it ends and the number of those still to come. Raises ValueError, before anything
    is started, for an experiment whose flags do not go together and if another process runs this study in `out`, and
    at the end if no run came to an end.
    """
    for cell in study.cells:
        resolve(cell.experiment)
    runs = {seeded(cell, seed, out): (cell, seed) for seed in study.seeds for cell in study.cells if wanted(cell, seed)}
    # A second process would start the runs again that the first one is running.
    with alone(out, "running this study"):
        done = {each: Finished(*runs[each], _directory(each), None) for each in runs if ended(each)}
        left = len(runs) - len(done)
        for each, failure in _run_all([each for each in runs if each not in done], jobs):
            done[each] = Finished(*runs[each], _directory(each), failure)
            left -= 1
            watch(done[each], left)
    failures = [done[each].failure for each in runs]
    if all(failures):
        raise InputError("study", f"every run failed, the first with: {failures[0]}")
    return [done[each] for each in runs]


def seeded(cell: Cell, seed: int, out: Path) -> Experiment:
    """The cell's experiment with this seed, on the local engine, in the directory of its name below `out`."""
    experiment = cell.experiment.model_copy(update={"seed": seed, "engine": "local", "quiet": True, "out": None})
    given = json.dumps(experiment.model_dump(mode="json", exclude_defaults=True), sort_keys=True)
    digest = hashlib.sha256(given.encode()).hexdigest()[:8]
    words = re.sub(r"[^a-z0-9.]+", "-", f"{cell.row} {cell.column}".lower()).strip("-")
    return experiment.model_copy(update={"out": out / f"{words}-{seed}-{digest}"})


def values(study: Study, runs: Sequence[Finished]) -> pd.DataFrame:
    """One line per run and metric: row, column, seed, metric, value; NaN where the run failed."""
    lines = []
    for each in runs:
        history = None if each.failure else History(each.directory)
        for metric in study.metrics:
            value = metric.of(history) if history else float("nan")
            lines.append((each.cell.row, each.cell.column, each.seed, metric.name, value))
    return pd.DataFrame(lines, columns=["row", "column", "seed", "metric", "value"])


def _directory(experiment: Experiment) -> Path:
    assert experiment.out is not None
    return experiment.out


def ended(experiment: Experiment) -> bool:
    """Whether this very experiment, of what its method is today, is in its directory to its end."""
    return (_directory(experiment) / SUMMARY).is_file() and _began(experiment)


def _began(experiment: Experiment) -> bool:
    """Whether the directory holds this very experiment: defaults and methods may have changed, which no name tells."""
    directory = _directory(experiment)
    if not (directory / CONFIG).is_file():
        return False
    said = {"partition": None} if experiment.partition is None else {}  # which the run has written down by its name
    try:
        history = History(directory)
        same = history.experiment.model_copy(update={"out": directory} | said) == experiment
        return same and unchanged(history.config["method"], experiment)
    except ValueError:  # of a version that knew other fields
        return False


def unchanged(method: Mapping[str, Any], experiment: Experiment) -> bool:
    """Whether the method that an earlier run of this experiment describes is the one that it has today."""
    if experiment.capacities == "auto":  # its shares are then of the fleet
        return True
    return differs(method, resolve(experiment)) is None


def _run_all(experiments: Sequence[Experiment], jobs: int) -> Iterator[tuple[Experiment, str | None]]:
    """Every experiment as it ends and why it failed, if it did; one at a time in this process."""
    if jobs == 1:
        yield from ((each, _run_one(each)) for each in experiments)
        return
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(jobs, mp_context=context, initializer=_begin) as executor:
        futures = {executor.submit(_run_one, each): each for each in experiments}
        try:
            for future in as_completed(futures):
                yield futures[future], future.result()
        except BaseException:
            executor.shutdown(cancel_futures=True)
            raise


def _run_one(experiment: Experiment) -> str | None:
    """Begins or goes on with one run, to its end; returns why it failed, if it did."""
    directory = _directory(experiment)
    try:
        if _began(experiment) and History(directory).config["commit"] == commit():
            resume(directory)
        else:
            shutil.rmtree(directory, ignore_errors=True)  # of another experiment or version, or killed before it began
            run(experiment)
    except (RunFailed, ValueError) as error:  # ValueError: the model or the data do not fit the method
        return str(error)
    finally:
        gc.collect()  # a run's data are in reference cycles, which would wait for many runs
    return None


def _begin() -> None:
    """What was imported is not searched for garbage after every run, which took longer than to start one."""
    gc.collect()
    gc.freeze()
    _end_with_parent()


def _end_with_parent() -> None:
    """A killed study leaves no process that goes on writing its runs."""
    parent = multiprocessing.parent_process()
    assert parent is not None

    def watch() -> None:
        wait([parent.sentinel])
        os._exit(1)

    threading.Thread(target=watch, daemon=True).start()
