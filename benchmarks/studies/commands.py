"""The commands of the studies: list them, run one to its table, its words and its picture."""

import os
import time
from collections.abc import Sequence
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import cast

import tyro
from rich import box
from rich.table import Table

from benchmarks.studies.picture import draw
from benchmarks.studies.race.command import race
from benchmarks.studies.recipes import RECIPES
from benchmarks.studies.recipes.scale import SIZES, Scale, Size
from benchmarks.studies.results import file_name
from benchmarks.studies.setting import chance, setting
from benchmarks.studies.study import Finished, Study, execute, values
from benchmarks.studies.tables import Entry, caption, entries, findings, frame, latex, markdown, means, rich_table
from benchmarks.studies.weak import weak_points
from fedraa.cli.compare import differences_table
from fedraa.cli.display import say, show
from fedraa.config.experiment import Experiment
from fedraa.errors import InputError
from fedraa.report.cells import check_each_once
from fedraa.report.compare import DIFFERENCES
from fedraa.report.differences import differences
from fedraa.rundir.atomic_files import write_text
from fedraa.rundir.history import History
from fedraa.settings.terms import Terms, on_terms
from fedraa.settings.tuned import read_tuned

RACE = "race"


def list_studies() -> None:
    """Print the name of every study and its subject."""
    table = Table("study", "what it shows", box=box.SIMPLE_HEAD)
    for name, recipe in RECIPES.items():
        table.add_row(name, (recipe.__doc__ or "").partition("\n")[0])
    table.add_row(RACE, "All asynchronous methods, FedAvg, FedRolex, IST and ours, tuned: time to three accuracies.")
    show(table)


def run_study(
    study: tyro.conf.Positional[str],
    quick: tyro.conf.FlagCreatePairsOff[bool] = False,
    standard: tyro.conf.FlagCreatePairsOff[bool] = False,
    paper: tyro.conf.FlagCreatePairsOff[bool] = False,
    data_dir: Path | None = None,
    out: Path = Path("runs/studies"),
    seeds: tuple[int, ...] | None = None,
    jobs: int | None = None,
    terms: Terms | None = None,
    tuned: Path | None = None,
    setting: tuple[str, ...] | None = None,
    methods: tuple[str, ...] | None = None,
    parts: tuple[str, ...] | None = None,
    extend: Path | None = None,
) -> None:
    """Run a study, or go on with it: its table, words and picture.

    Args:
        study: Its name, see `list`.
        quick: A size that ends in minutes on two cores.
        standard: Real data, at most some 40 minutes on two cores.
        paper: The paper's size.
        data_dir: Where the datasets lie.
        out: Where the runs and the results go.
        seeds: One run per cell and seed (default: the study's).
        jobs: Runs at a time (default: one per core).
        terms: On which all methods are run instead of the study's own, equal, paper or tuned, as in `fedraa compare`.
        tuned: The file that `fedraa tune` wrote, for tuned terms; that of a race, for one with the same values.
        setting: Of the race, which are run (default: all).
        methods: Of the race, who takes part (default: all).
        parts: Of the race, tuned, untuned or long (default: all, in that order).
        extend: Of the race, the folder of an earlier one's results: what was tuned and run there is on the new pages
            and not made again.
    """
    if jobs is not None and jobs < 1:
        raise InputError("jobs", got=jobs, expected="a number from 1")
    chosen = {"seeds": seeds, "setting": setting, "methods": methods, "parts": parts}
    check_each_once(**{field: values for field, values in chosen.items() if values is not None})
    if seeds and min(seeds) < 0:
        raise InputError("seeds", got=seeds, expected="numbers from 0")
    if study == RACE:
        if standard or paper or terms is not None:
            raise InputError(
                "study", "race has sizes and terms of its own", hint="leave out --standard, --paper and --terms"
            )
        known = {"tuned": tuned, "extend": extend}
        race(setting, methods, parts, quick=quick, data_dir=data_dir, out=out, seeds=seeds, jobs=jobs, **known)
        return
    if (setting, methods, parts, extend) != (None, None, None, None):
        raise InputError("study", "only race has settings, methods, parts and an extension", got=study)
    if study not in RECIPES:
        raise InputError("study", got=study, expected=f"one of {', '.join([*RECIPES, RACE])}")
    sizes = [size for size, given in zip(SIZES, (quick, standard, paper), strict=True) if given]
    if len(sizes) != 1:
        raise InputError("quick", got=quick, expected="exactly one of --quick, --standard and --paper")
    size = cast(Size, sizes[0])
    planned = RECIPES[study](Scale(size, data_dir))
    if seeds is not None:
        planned = Study(**vars(planned) | {"seeds": seeds})
    planned = on_those(planned, terms, tuned)
    directory = out / (f"{study}-{size}" + (f"-{terms}" if terms else ""))
    runs = execute(planned, directory, jobs or len(os.sched_getaffinity(0)), HealthMonitor(planned))
    own_seeds = f" --seeds {' '.join(map(str, seeds))}" if seeds else ""
    data = " --data-dir DATA" if data_dir else ""
    on = f" --terms {terms}" if terms else ""
    file = f" --tuned {tuned.name}" if tuned else ""
    report(planned, runs, directory, size, f"python -m benchmarks run {study} --{size}{own_seeds}{data}{on}{file}")


def on_those(study: Study, terms: Terms | None, tuned: Path | None) -> Study:
    """The study on these terms, which win over its own; equal ones leave what it sets, which may be what it varies."""
    found = None if tuned is None else read_tuned(tuned)
    experiments = [on_terms(cell.experiment, terms, found, over=True) for cell in study.cells]
    if terms is None:
        return study
    cells = [replace(cell, experiment=Experiment(**dict(e))) for cell, e in zip(study.cells, experiments, strict=True)]
    return replace(study, cells=cells, title=f"{study.title}, on {terms} terms")


class HealthMonitor:
    """Says what each run of a study came to, which of all it is, and how long the rest may take."""

    def __init__(self, study: Study) -> None:
        self._count, self._here, self._started = len(study.cells) * len(study.seeds), 0, time.monotonic()

    def __call__(self, run: Finished, left: int) -> None:
        self._here += 1
        where = f"{run.cell.row} {run.cell.column}".strip()
        came = f"failed: {run.failure}" if run.failure else f"accuracy {History(run.directory).summary['accuracy']:.4f}"
        rest = timedelta(seconds=round((time.monotonic() - self._started) / self._here * left))
        more = f"; about {rest} to go" if left else ""
        say(f"run {self._count - left} of {self._count}: {where} seed {run.seed}: {came}{more}")


def report(study: Study, runs: Sequence[Finished], directory: Path, size: Size, command: str) -> None:
    """Writes the table as CSV, LaTeX and Markdown with the words, and the picture; shows table and words."""
    found = entries(study, values(study, runs))
    commits = sorted({str(History(run.directory).config["commit"]) for run in runs if not run.failure})
    seconds = sum(float(str(History(run.directory).summary["wall"])) for run in runs if not run.failure)
    which = (
        f", commit {' and '.join(commits)}, seeds {' '.join(map(str, study.seeds))}, {seconds / 60:.1f} core minutes"
    )
    base = directory / file_name(study.name, size)
    rows = frame(study, found).to_csv(index=False, float_format="%.6g")
    write_text(base.with_suffix(".csv"), f"# {command}{which}\n# {setting(study)}\n{rows}")
    write_text(base.with_suffix(".tex"), latex(study, found))
    write_text(base.with_suffix(".md"), page(study, found, f"`{command}`{which}"))
    draw(study, runs, found, base.with_suffix(".png"))
    differ = differences((cell.row, cell.experiment) for cell in study.cells)
    write_text(directory / DIFFERENCES, differ.to_csv(index=False))
    show(differences_table(differ, f"in {study.name}"))
    show(rich_table(study, found))
    for sentence in (*weak_points(means(found), chance(study)), *findings(study, found)):
        say(sentence)
    say(f"written to {base}.csv, .tex, .md and .png")


def page(study: Study, found: Sequence[Entry], made: str) -> str:
    """Return the page of a study: its findings, its table, and the runs that they come from."""
    weak = [f"- **{sentence}**" for sentence in weak_points(means(found), chance(study))]
    told = [f"- {sentence}" for sentence in findings(study, found)]
    notes = [f"- {note}" for note in study.notes]
    parts = [f"# {study.title}", f"{setting(study)}.", markdown(study, found), caption(study, found) + "."]
    parts += ["\n".join(weak + told), "\n".join(notes), what_differs(study), made]
    return "\n\n".join(filter(None, parts)) + "\n"


def what_differs(study: Study) -> str:
    """Every setting in which the rows differ, as a table; nothing where all are alike."""
    differ = differences((cell.row, cell.experiment) for cell in study.cells)
    if differ.empty:
        return ""
    lines = [f"| {setting} | {value} | {rows} |" for setting, value, rows in differ.itertuples(index=False)]
    return "\n".join(["What differs between the rows:", "", "| setting | value | rows |", "|---|---|---|", *lines])
