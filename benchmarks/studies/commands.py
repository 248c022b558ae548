"""The commands `list` and `run` of the studies."""

import time
from collections.abc import Sequence
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Annotated, cast

import tyro
from rich import box
from rich.table import Table

from benchmarks.studies.options import RunOptions
from benchmarks.studies.picture import draw_study
from benchmarks.studies.race.command import run_race
from benchmarks.studies.recipes import RECIPES
from benchmarks.studies.recipes.scale import SIZES, Scale, Size
from benchmarks.studies.results import file_name
from benchmarks.studies.setting import chance_level, describe_setting
from benchmarks.studies.study import Finished, Study, execute_study, measure_runs
from benchmarks.studies.tables import (
    Entry,
    describe_findings,
    format_caption,
    format_latex,
    format_markdown,
    make_entries,
    make_frame,
    markdown_table,
    mean_accuracies,
    rich_table,
)
from benchmarks.studies.weak import weak_points
from fedraa.cli.compare import differences_table
from fedraa.cli.console import print_line, print_table
from fedraa.config.experiment import Experiment
from fedraa.errors import InputError
from fedraa.numbers import format_count
from fedraa.report.compare import DIFFERENCES
from fedraa.report.differences import setting_differences, shared_settings
from fedraa.rundir.atomic_files import write_text
from fedraa.rundir.history import History
from fedraa.settings.terms import Terms, on_terms
from fedraa.settings.tuned import read_tuned
from fedraa.vectors.chunked import count_cores

RACE = "race"
# The command and the page of a study list at most this number of consecutive seeds.
MAX_LISTED_SEEDS = 20
# The page of a study omits a shared setting with one of these values, because the setting has no effect.
OFF = ("", "0", "False", "none")
# Seconds between two reports of the measurement of runs.
REPORT_SECONDS = 10.0


def list_studies() -> None:
    """Print the name and the subject of every study."""
    table = Table("study", "what it shows", box=box.SIMPLE_HEAD)
    for name, recipe in RECIPES.items():
        table.add_row(name, (recipe.__doc__ or "").partition("\n")[0])
    table.add_row(RACE, "Asynchronous methods, FedAvg, FedRolex, IST and Fed-Quilt, tuned: time to three accuracies.")
    print_table(table)


def run_study(study: tyro.conf.Positional[str], options: Annotated[RunOptions, tyro.conf.arg(name="")]) -> None:
    """Run or continue a study, and write its table, its findings and its picture.

    Args:
        study: The name of the study; the command `list` shows all names.
        options: The options of the run.
    """
    options.check_numbers()
    if study == RACE:
        options.check_for_race()
        run_race(options)
        return
    options.check_for_study(study)
    if study not in RECIPES:
        raise InputError("study", got=study, expected=f"one of {', '.join([*RECIPES, RACE])}")
    flags = (options.quick, options.standard, options.paper)
    sizes = [size for size, chosen in zip(SIZES, flags, strict=True) if chosen]
    if len(sizes) != 1:
        raise InputError("quick", got=options.quick, expected="exactly one of --quick, --standard and --paper")
    size = cast(Size, sizes[0])
    planned = RECIPES[study](Scale(size, options.data_dir))
    if options.seeds is not None:
        planned = replace(planned, seeds=options.seeds)
    planned = apply_terms(planned, options.terms, options.tuned)
    directory = options.out / "-".join(filter(None, (study, size, options.terms)))
    runs = execute_study(planned, directory, options.jobs or count_cores(), ProgressPrinter(planned))
    report_study(planned, runs, directory, size, command_line(study, size, options))


def command_line(study: str, size: str, options: RunOptions) -> str:
    """Return the command that repeats a study, with `DATA` for the folder of the data.

    Args:
        study: The study's name.
        size: The study's size.
        options: The options of the run.
    """
    command = f"python -m benchmarks run {study} --{size}"
    if options.seeds:
        arguments = " ".join(map(str, options.seeds))
        if _is_long_range(options.seeds):
            arguments = f"$(seq {options.seeds[0]} {options.seeds[-1]})"
        command += f" --seeds {arguments}"
    if options.data_dir:
        command += " --data-dir DATA"
    if options.terms:
        command += f" --terms {options.terms}"
    if options.tuned:
        command += f" --tuned {options.tuned.name}"
    return command


def _is_long_range(seeds: Sequence[int]) -> bool:
    """Return True if the seeds are consecutive and too many to list."""
    return len(seeds) > MAX_LISTED_SEEDS and list(seeds) == list(range(seeds[0], seeds[-1] + 1))


def apply_terms(study: Study, terms: Terms | None, tuned: Path | None) -> Study:
    """Return the study with the hyperparameters that `fedraa compare --terms` would set.

    With the terms `equal`, fields that the study sets keep their values.

    Args:
        study: The study.
        terms: The source of the hyperparameters: `equal`, `paper` or `tuned`. None returns the study unchanged.
        tuned: The file of tuned values if the terms are `tuned`.
    """
    values = read_tuned(tuned) if tuned else None
    experiments = [on_terms(cell.experiment, terms, values, over=True) for cell in study.cells]
    if terms is None:
        return study
    cells = [replace(cell, experiment=Experiment(**dict(e))) for cell, e in zip(study.cells, experiments, strict=True)]
    return replace(study, cells=cells, title=f"{study.title}, on {terms} terms")


class MeasurementPrinter:
    """A callback that prints how many of the runs are measured, at most every `REPORT_SECONDS`."""

    def __init__(self, count: int) -> None:
        self._count = count
        self._printed = time.monotonic()

    def __call__(self, measured: int) -> None:
        if time.monotonic() - self._printed >= REPORT_SECONDS:
            self._printed = time.monotonic()
            print_line(f"{measured} of {format_count(self._count, 'run')} measured")


class ProgressPrinter:
    """A callback that prints each run's result and the expected remaining time."""

    def __init__(self, study: Study) -> None:
        self._count = len(study.cells) * len(study.seeds)
        self._run_here = 0
        self._started = time.monotonic()

    def __call__(self, run: Finished, left: int) -> None:
        self._run_here += 1
        where = f"{run.cell.row} {run.cell.column}".strip()
        result = f"failed: {run.failure}"
        if not run.failure:
            result = f"accuracy {History(run.directory).summary['accuracy']:.4f}"
        line = f"run {self._count - left} of {self._count}: {where} seed {run.seed}: {result}"
        if left:
            seconds = (time.monotonic() - self._started) / self._run_here * left
            line += f"; about {timedelta(seconds=round(seconds))} to go"
        print_line(line)


def report_study(study: Study, runs: Sequence[Finished], directory: Path, size: Size, command: str) -> None:
    """Write a study's table (CSV, LaTeX, Markdown), findings and picture, and print table and findings.

    Args:
        study: The study.
        runs: All runs of the study.
        directory: The folder for the files.
        size: The study's size.
        command: The command that repeats the study.
    """
    numbers = make_entries(study, measure_runs(study, runs, MeasurementPrinter(len(runs))))
    histories = [History(run.directory) for run in runs if not run.failure]
    commits = sorted({str(history.config["commit"]) for history in histories})
    seconds = sum(float(str(history.summary["wall"])) for history in histories)
    seeds = " ".join(map(str, study.seeds))
    if _is_long_range(study.seeds):
        seeds = f"{study.seeds[0]} to {study.seeds[-1]}"
    source = f", commit {' and '.join(commits)}, seeds {seeds}, {seconds / 60:.1f} core minutes"
    base = directory / file_name(study.name, size)
    rows = make_frame(study, numbers).to_csv(index=False, float_format="%.6g")
    write_text(base.with_suffix(".csv"), f"# {command}{source}\n# {describe_setting(study)}\n{rows}")
    write_text(base.with_suffix(".tex"), format_latex(study, numbers))
    write_text(base.with_suffix(".md"), format_page(study, numbers, f"`{command}`{source}"))
    draw_study(study, runs, numbers, base.with_suffix(".png"))
    differ = setting_differences((cell.row, cell.experiment) for cell in study.cells)
    write_text(directory / DIFFERENCES, differ.to_csv(index=False))
    print_table(differences_table(differ, f"in {study.name}"))
    print_table(rich_table(study, numbers))
    for sentence in (*weak_points(mean_accuracies(numbers), chance_level(study)), *describe_findings(study, numbers)):
        print_line(sentence)
    print_line(f"written to {base}.csv, .tex, .md and .png")


def format_page(study: Study, numbers: Sequence[Entry], source: str) -> str:
    """Return a study's Markdown page: its table, findings and notes, and the source of its runs.

    Args:
        study: The study.
        numbers: The cells of the study's table.
        source: The command, the commit and the seeds of the runs.
    """
    weak = [f"- **{sentence}**" for sentence in weak_points(mean_accuracies(numbers), chance_level(study))]
    sentences = [f"- {sentence}" for sentence in describe_findings(study, numbers)]
    notes = [f"- {note}" for note in study.notes]
    parts = [
        f"# {study.title}",
        f"{describe_setting(study)}.",
        format_markdown(study, numbers),
        format_caption(study, numbers) + ".",
    ]
    parts += ["\n".join(weak + sentences), "\n".join(notes), format_differences(study), format_shared(study), source]
    return "\n\n".join(filter(None, parts)) + "\n"


def format_differences(study: Study) -> str:
    """Return a Markdown table of the settings in which the study's rows differ; empty if none differ."""
    differ = setting_differences((cell.row, cell.experiment) for cell in study.cells)
    if differ.empty:
        return ""
    table = markdown_table(("setting", "value", "rows"), differ.itertuples(index=False))
    return f"What differs between the rows:\n\n{table}"


def format_shared(study: Study) -> str:
    """Return a Markdown table of the settings in which the study's rows agree, without those that are off."""
    shared = shared_settings((cell.row, cell.experiment) for cell in study.cells)
    table = markdown_table(("setting", "value"), [item for item in shared.items() if item[1] not in OFF])
    return f"What the rows share:\n\n{table}"
