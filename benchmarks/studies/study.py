"""A study: a grid of experiments, one run per cell and seed. An interrupted study continues where it ended.

A run directory's name has a digest of the experiment's fields. If a cell changes, its run therefore gets a new
directory. A finished run is not repeated. An interrupted run resumes from its checkpoint. It restarts if the code's
commit changed.
"""

import gc
import hashlib
import json
import math
import re
import shutil
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, wait
from dataclasses import dataclass, field
from itertools import product
from pathlib import Path
from typing import Any, Literal

import pandas as pd

from benchmarks.studies.metrics import Metric
from fedraa.api import resume, run
from fedraa.composition.differences import differing_part
from fedraa.config.experiment import Experiment
from fedraa.engine.run_data import read_dataset
from fedraa.engine.run_description import source_commit
from fedraa.errors import InputError, RunFailed
from fedraa.rundir.file_names import CONFIG, SUMMARY
from fedraa.rundir.history import History
from fedraa.rundir.run_lock import lock_directory
from fedraa.settings.resolve import resolve_method
from fedraa.tuning.processes import explain_interruption, open_processes

SEEDS = (0, 1, 2)
# The folder of the files that describe devices.
FLEETS = Path(__file__).parents[1] / "fleets"


@dataclass(frozen=True)
class Cell:
    """A cell of a study's table, with the experiment that fills it.

    `paper` has the values that the paper reports, by the name of the metric.
    """

    row: str
    experiment: Experiment
    column: str = ""
    paper: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True)
class Claim:
    """A claim for which the paper has no numbers: the row `better` is better in `metric` than the row `worse`.

    `source` quotes the claim and its place in the paper.
    """

    better: str
    worse: str
    metric: str
    source: str


@dataclass(frozen=True)
class Study:
    """A grid of experiments, and the texts of its page.

    Attributes:
        name: The study's name.
        title: The title of the page.
        cells: The cells of the table.
        metrics: The metrics in each cell.
        reference: The row with which a significance test compares every other row.
        notes: Settings that the paper does not state, and differences from the paper.
        claims: Claims of the paper for which it states no numbers.
        seeds: The seeds of each cell.
        along: The horizontal axis of the curves; None draws no curves.
        fixed: The name of one column, if the columns are values of one hyperparameter. The page then compares the rows
            twice: all rows in this column, and each row in its best column. None if the columns are something else.
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
        claimed_rows = {claim.better for claim in self.claims} | {claim.worse for claim in self.claims}
        assert claimed_rows | {self.reference} <= set(self.rows)
        names = {metric.name for metric in self.metrics}
        assert all(set(cell.paper) <= names for cell in self.cells)

    @property
    def rows(self) -> list[str]:
        return list(dict.fromkeys(cell.row for cell in self.cells))

    @property
    def columns(self) -> list[str]:
        return list(dict.fromkeys(cell.column for cell in self.cells))


@dataclass(frozen=True)
class Finished:
    """An ended run of a study. `failure` is the error of a failed run, otherwise None."""

    cell: Cell
    seed: int
    directory: Path
    failure: str | None


def execute_study(
    study: Study,
    out: Path,
    jobs: int,
    watch: Callable[[Finished, int], None],
    wanted: Callable[[Cell, int], bool] = lambda cell, seed: True,
) -> list[Finished]:
    """Execute a study's missing runs, and return all its runs in the order of seeds and cells.

    Args:
        study: The study.
        out: The folder of the run directories.
        jobs: The number of runs at the same time. More than 1 starts a process per run.
        watch: Called when a run ends, with the run and the number of remaining runs.
        wanted: Selects cells and seeds (default: all).

    Raises InputError if an experiment is invalid, another process executes the study in `out`, or every run failed.
    Raises Interrupted after Ctrl-C, and RunFailed if a process of a run was killed.
    """
    for cell in study.cells:
        resolve_method(cell.experiment)
    places = [(cell, seed) for seed, cell in product(study.seeds, study.cells) if wanted(cell, seed)]
    runs = {seed_experiment(cell, seed, out): (cell, seed) for cell, seed in places}
    # Without the lock, a second process would repeat the same runs.
    with lock_directory(out, "running this study"), explain_interruption("run"):
        done = {
            planned: Finished(*runs[planned], _run_directory(planned), None) for planned in runs if has_ended(planned)
        }
        missing = [planned for planned in runs if planned not in done]
        _read_datasets(missing)
        left = len(missing)
        for planned, failure in _run_all(missing, jobs):
            done[planned] = Finished(*runs[planned], _run_directory(planned), failure)
            left -= 1
            watch(done[planned], left)
    failures = [done[planned].failure for planned in runs]
    if all(failures):
        raise InputError("study", f"every run failed, the first with: {failures[0]}")
    return [done[planned] for planned in runs]


def _read_datasets(experiments: Iterable[Experiment]) -> None:
    """Raise InputError if a dataset cannot be read. Otherwise every run with this dataset would fail."""
    for one in {(one.dataset, one.data_dir): one for one in experiments}.values():
        read_dataset(one)


def seed_experiment(cell: Cell, seed: int, out: Path) -> Experiment:
    """Return a cell's experiment on the local engine, with a seed and a run directory below `out`.

    Args:
        cell: The cell.
        seed: The seed.
        out: The folder of the run directories.
    """
    experiment = cell.experiment.model_copy(update={"seed": seed, "engine": "local", "quiet": True, "out": None})
    fields = json.dumps(experiment.model_dump(mode="json", exclude_defaults=True), sort_keys=True)
    digest = hashlib.sha256(fields.encode()).hexdigest()[:8]
    words = re.sub(r"[^a-z0-9.]+", "-", f"{cell.row} {cell.column}".lower()).strip("-")
    return experiment.model_copy(update={"out": out / f"{words}-{seed}-{digest}"})


def measure_runs(study: Study, runs: Sequence[Finished], report: Callable[[int], None]) -> pd.DataFrame:
    """Return a row per run and metric, with NaN as the value of failed runs.

    Some metrics need seconds per run, because they load the model and the data. `report` is called before each run with
    the number of runs that are measured.
    """
    lines = []
    for number, finished in enumerate(runs):
        report(number)
        of_metrics = _metric_values(study.metrics, finished)
        for metric, value in zip(study.metrics, of_metrics, strict=True):
            lines.append((finished.cell.row, finished.cell.column, finished.seed, metric.name, value))
    return pd.DataFrame(lines, columns=["row", "column", "seed", "metric", "value"])


def _metric_values(metrics: Sequence[Metric], finished: Finished) -> list[float]:
    if finished.failure:
        return [math.nan] * len(metrics)
    history = History(finished.directory)
    return [metric.of(history) for metric in metrics]


def _run_directory(experiment: Experiment) -> Path:
    assert experiment.out is not None
    return experiment.out


def has_ended(experiment: Experiment) -> bool:
    """Return True if the directory of the experiment has a finished run with the method's present settings."""
    return (_run_directory(experiment) / SUMMARY).is_file() and _has_begun(experiment)


def _has_begun(experiment: Experiment) -> bool:
    """Return True if the experiment's directory has a run of the experiment, finished or not.

    A run whose defaults or method differ from the present ones is a run of another experiment. The name of the
    directory does not show this difference, so the function compares the configurations.
    """
    directory = _run_directory(experiment)
    if not (directory / CONFIG).is_file():
        return False
    changes: dict[str, Any] = {"out": directory}
    # If the partition or the number of clients is None in `experiment`, the run chose a value, and stored it in its
    # configuration. The stored value must not count as a difference.
    for name in ("partition", "clients"):
        if getattr(experiment, name) is None:
            changes[name] = None
    try:
        history = History(directory)
        same = history.experiment.model_copy(update=changes) == experiment
        return same and has_same_method(history.config["method"], experiment)
    # Another version of fedraa, with other fields, wrote the configuration.
    except ValueError:
        return False


def has_same_method(method: Mapping[str, Any], experiment: Experiment) -> bool:
    """Return True if the recorded `method` of an earlier run equals the experiment's present method."""
    # The recorded method has numbers in place of `auto`, so a comparison would always find a difference.
    if experiment.capacities == "auto":
        return True
    return differing_part(method, resolve_method(experiment)) is None


def _run_all(experiments: Sequence[Experiment], jobs: int) -> Iterator[tuple[Experiment, str | None]]:
    """Yield each experiment when its run ends, with the error if it failed."""
    if jobs == 1:
        for experiment in experiments:
            yield experiment, _run_one(experiment)
        return
    waiting = deque(experiments)
    running: dict[Future[str | None], Experiment] = {}
    with open_processes(jobs, _freeze_modules) as submit:
        while waiting or running:
            while waiting and len(running) < jobs:
                experiment = waiting.popleft()
                running[submit(_run_one, experiment)] = experiment
            for future in wait(running, return_when=FIRST_COMPLETED).done:
                yield running.pop(future), future.result()


def _run_one(experiment: Experiment) -> str | None:
    """Execute or resume a run, and return the error if it failed."""
    directory = _run_directory(experiment)
    try:
        if _has_begun(experiment) and History(directory).config["commit"] == source_commit():
            resume(directory, trust=True)
        else:
            # The directory is from another experiment or version, or its run ended before training.
            shutil.rmtree(directory, ignore_errors=True)
            run(experiment)
    # ValueError: the model or the data do not fit the method.
    except (RunFailed, ValueError) as error:
        return str(error)
    finally:
        # A run's objects refer to each other in cycles. Without this call they would stay in memory.
        gc.collect()
    return None


def _freeze_modules() -> None:
    """Exclude imported modules from garbage collection."""
    gc.collect()
    gc.freeze()
