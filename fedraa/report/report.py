"""The report of runs: its contents and its files."""

from collections.abc import Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import Literal

from fedraa.components.imports import importing_only
from fedraa.engine.resume import refuse_foreign
from fedraa.errors import InputError
from fedraa.numbers import format_count
from fedraa.report import comparison, fairness, loss_surface, single, tables
from fedraa.report.landscape import load_model_and_samples, measure_sharpness, measure_surface
from fedraa.report.outlook import compare_with_plan
from fedraa.report.page import Section, render_page
from fedraa.report.runs import Group, load_groups, runs_of
from fedraa.report.theme import DARK, LIGHT, Theme, render_picture
from fedraa.report.verdict import describe_comparison
from fedraa.rundir.atomic_files import replace_file, write_text

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
    """Write the HTML page `out` about these runs, and return the folder with its tables and plots.

    The folder `NAME_files` is beside the page. It holds every table as CSV and LaTeX, and every plot as PDF.

    Args:
        runs: The run directories, or folders of them.
        out: The page.
        theme: The colours; `auto` follows the reader's screen.
        landscape: True to add plots of the loss around every trained model. They need the data.
        trust: True to allow the loss landscape to import custom code of a run.

    Raises ValueError for a directory that is not a run, has no evaluation yet, or is damaged.
    """
    if theme not in tuple(THEMES):
        raise InputError("theme", got=theme, expected=", ".join(THEMES))
    if out.is_dir():
        raise InputError("out", f"{out} is a directory", hint="name the page to write")
    groups = load_groups(runs)
    if landscape and not trust:
        for run in runs_of(groups):
            refuse_foreign(run.directory, run.config["experiment"])
    folder = out.with_name(out.stem + FILES)
    # If the folder cannot be written, the error should come before the slow work.
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        problem = f"the folder {folder} cannot be created: {error.strerror}"
        raise InputError("out", problem, got=out, hint="name a page in another folder") from None
    with nullcontext() if trust else importing_only(()):
        sections = _make_sections(groups, landscape=landscape)
    themes = THEMES[theme]
    pictures = [picture for section in sections for picture in section.pictures]
    # The plots' names are also file names, so each name must be unique.
    assert len({picture.name for picture in pictures}) == len(pictures)
    images: dict[str, dict[Theme, bytes]] = {}
    prints: dict[str, bytes] = {}
    for picture in pictures:
        light, prints[picture.name] = render_picture(picture, LIGHT, "svg", "pdf")
        by_theme = {LIGHT: light}
        if DARK in themes:
            (by_theme[DARK],) = render_picture(picture, DARK, "svg")
        images[picture.name] = {colours: by_theme[colours] for colours in themes}
    for section in sections:
        for table in (*section.tables, *section.folded):
            write_text(folder / f"{table.name}.csv", table.csv)
            write_text(folder / f"{table.name}.tex", table.latex)
    for name, pdf in prints.items():
        with replace_file(folder / f"{name}.pdf") as stream:
            stream.write(pdf)
    write_text(out, render_page(*_title_and_subtitle(groups), sections, images, themes))
    return folder


def _title_and_subtitle(groups: Sequence[Group]) -> tuple[str, str]:
    runs = runs_of(groups)
    datasets = sorted({group.first.options["dataset"] for group in groups})
    # A run of an installed package has no commit.
    commits = sorted({run.config["commit"][:10] for run in runs if run.config["commit"]})
    counts = f"{format_count(len(runs), 'run')}, {format_count(len(groups), 'method')}"
    text = f"{counts}, {', '.join(datasets)}."
    if commits:
        text += f" Commit {', '.join(commits)}."
    title = f"{len(groups)} methods compared"
    if len(groups) < 4:
        title = " · ".join(group.label for group in groups)
    return title, text


def _make_sections(groups: Sequence[Group], *, landscape: bool) -> list[Section]:
    runs = runs_of(groups)
    sharp = {run: measure_sharpness(*load_model_and_samples(run.history)) for run in runs if run.ended and landscape}
    columns = tables.table_metrics(groups, sharp)
    differences, settings = tables.configuration_tables(groups)
    words = describe_comparison(groups) or [compare_with_plan(groups[0].first)]
    return [
        Section("In words", paragraphs=words),
        Section(
            "Results",
            "",
            [tables.make_method_table(groups, columns), *fairness.fairness_tables(groups)],
            comparison.comparison_pictures(groups),
        ),
        *(_of_group(group, sharp.get(group.first)) for group in groups),
        Section("Every run", "", [tables.make_run_table(groups, columns)]),
        Section("Configuration", "", [differences] if len(groups) > 1 else [], folded=[settings]),
        Section("Commands", "Each of these lines reproduces one run.", commands=[run.command for run in runs]),
    ]


def _of_group(group: Group, sharp: float | None) -> Section:
    run = group.first
    tasks = format_count(run.summary["tasks"], "task")
    text = f"{format_count(run.clients, 'client')}, {tasks} in {run.end:.4g} {run.time_unit}."
    if len(group.runs) > 1:
        text += f" The plots show seed {run.seed}, one of {len(group.runs)} seeds."
    pictures = single.run_pictures(run, group.slug)
    if sharp is not None:
        module, x, y = load_model_and_samples(run.history)
        pictures += loss_surface.landscape_pictures(measure_surface(module, x, y), sharp, group.slug, len(y))
    return Section(group.label, text, pictures=pictures, paragraphs=[compare_with_plan(run)])
