"""The report of runs: its contents and its files."""

from collections.abc import Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import Literal

from fedraa.components.imports import importing_only
from fedraa.engine.resume import refuse_foreign
from fedraa.errors import InputError
from fedraa.numbers import counted
from fedraa.report import comparison, fairness, single, tables, terrain
from fedraa.report.landscape import sharpness, surface, trained
from fedraa.report.outlook import outlook
from fedraa.report.page import Section, page
from fedraa.report.runs import Group, load
from fedraa.report.theme import DARK, LIGHT, render
from fedraa.report.verdict import verdict
from fedraa.rundir.atomic_files import replacing, write_text

THEMES = {"auto": (LIGHT, DARK), "light": (LIGHT,), "dark": (DARK,)}
FILES = "_files"


def report(
    runs: Sequence[Path],
    out: Path,
    *,
    theme: Literal["auto", "light", "dark"] = "auto",
    landscape: bool = False,
    trust: bool = False,
) -> Path:
    """Write the page `out` about these runs, or folders of runs, and return the folder beside it.

    The folder `NAME_files` holds every table as CSV and LaTeX, and every plot as PDF for print. Runs that have not
    ended are marked.

    Args:
        runs: The run directories, or folders of them.
        out: The page.
        theme: The colours; `auto` follows the reader's screen.
        landscape: True to load every model and its data for the loss landscape.
        trust: True to import the code that a run directory names for that.

    Raises ValueError for a directory that is not a run, has no evaluation yet, or is damaged.
    """
    groups = load(runs)
    if landscape and not trust:
        for run in (run for group in groups for run in group.runs):
            refuse_foreign(run.directory, run.config["experiment"])
    folder = out.with_name(out.stem + FILES)
    if out.is_dir():
        raise InputError("out", f"{out} is a directory", hint="name the page to write")
    # An unwritable folder is reported before the slow work.
    folder.mkdir(parents=True, exist_ok=True)
    with nullcontext() if trust else importing_only(()):
        sections = _sections(groups, landscape=landscape)
    themes = THEMES[theme]
    pictures = [picture for section in sections for picture in section.pictures]
    # The pictures' names are file names.
    assert len({picture.name for picture in pictures}) == len(pictures)
    images = {picture.name: {each: render(picture, each) for each in themes} for picture in pictures}
    for section in sections:
        for table in (*section.tables, *section.folded):
            write_text(folder / f"{table.name}.csv", table.csv)
            write_text(folder / f"{table.name}.tex", table.latex)
    for picture in pictures:
        with replacing(folder / f"{picture.name}.pdf") as stream:
            stream.write(render(picture, LIGHT, "pdf"))
    write_text(out, page(*_title(groups), sections, images, themes))
    return folder


def _title(groups: Sequence[Group]) -> tuple[str, str]:
    runs = sum(len(group.runs) for group in groups)
    datasets = sorted({group.first.flags["dataset"] for group in groups})
    commits = sorted({str(run.config["commit"])[:10] for group in groups for run in group.runs})
    counts = f"{counted(runs, 'run')}, {counted(len(groups), 'method')}"
    text = f"{counts}, {', '.join(datasets)}. Made at commit {', '.join(commits)}."
    return " · ".join(group.label for group in groups) if len(groups) < 4 else f"{len(groups)} methods compared", text


def _sections(groups: Sequence[Group], *, landscape: bool) -> list[Section]:
    runs = [run for group in groups for run in group.runs if run.ended and landscape]
    sharp = {run: sharpness(*trained(run.history)) for run in runs}
    columns = tables.metrics(groups, sharp)
    differences, settings = tables.configuration(groups)
    commands = [run.command for group in groups for run in group.runs]
    words = verdict(groups) or [outlook(groups[0].first)]
    return [
        Section("In words", paragraphs=words),
        Section(
            "Results", "", [tables.by_method(groups, columns), *fairness.tables(groups)], comparison.pictures(groups)
        ),
        *(_of_group(group, sharp.get(group.first)) for group in groups),
        Section("Every run", "", [tables.by_run(groups, columns)]),
        Section("Configuration", "", [differences] if len(groups) > 1 else [], folded=[settings]),
        Section("Commands", "Each of these lines reproduces one run.", commands=commands),
    ]


def _of_group(group: Group, sharp: float | None) -> Section:
    run = group.first
    others = "" if len(group.runs) == 1 else f" The figures show seed {run.seed} of {len(group.runs)}."
    text = f"{run.clients} clients, {run.summary['tasks']} tasks in {run.end:.4g} time units.{others}"
    pictures = single.pictures(run, group.slug)
    if sharp is not None:
        module, x, y = trained(run.history)
        pictures += terrain.pictures(surface(module, x, y), sharp, group.slug, len(y))
    return Section(group.label, text, pictures=pictures, paragraphs=[outlook(run)])
