"""The tables of a report: in the HTML page, as CSV and as LaTeX."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import chain

import pandas as pd

from fedraa.numbers import format_quantity
from fedraa.objectives.metric_spec import NOT_NEGATIVE, UNBOUNDED, Bounds, metric_heading
from fedraa.report.differences import flatten_description
from fedraa.report.landscape import RHO
from fedraa.report.runs import (
    Group,
    Run,
    custom_metrics_of,
    have_same_clock,
    have_same_target,
    heading_of_times,
    runs_of,
    value_text,
)
from fedraa.report.statistics import (
    LEVEL,
    confidence_interval,
    estimate_text,
    is_significant,
    mean_count_text,
    mean_or_nan,
    welch_p_value,
)

NONE = "–"
SINGLE_SEEDS_NOTE = (
    "Each method has one seed, so there is no interval and no test of significance; a difference may be chance."
)
LATEX = {
    "\\": r"\textbackslash{}",
    "&": r"\&",
    "%": r"\%",
    "$": r"\$",
    "#": r"\#",
    "_": r"\_",
    "{": r"\{",
    "}": r"\}",
    "~": r"\textasciitilde{}",
    "^": r"\textasciicircum{}",
    "±": r"$\pm$",
    "–": "--",
    "ρ": r"$\rho$",
    "ε": r"$\varepsilon$",
    "*": r"$^{*}$",
}


@dataclass(frozen=True)
class Cell:
    """A table cell. Rows are sorted by `value`, and cells with the value None come last."""

    text: str
    value: float | str | None


@dataclass(frozen=True)
class Table:
    """A table of a report.

    Attributes:
        name: The base name of the files.
        title: The title.
        note: The text below the title.
        columns: The headings.
        rows: The cells of each row.
        frame: The content of the CSV file, with plain numbers.
    """

    name: str
    title: str
    note: str
    columns: tuple[str, ...]
    rows: tuple[tuple[Cell, ...], ...]
    frame: pd.DataFrame

    @property
    def csv(self) -> str:
        return str(self.frame.to_csv(index=False))

    @property
    def latex(self) -> str:
        """Return a LaTeX tabular, which needs the booktabs package."""
        alignment = "".join("r" if is_numeric else "l" for is_numeric in self.numeric_columns())
        lines = [
            f"% {self.title}. {self.note}",
            rf"\begin{{tabular}}{{{alignment}}}",
            r"\toprule",
            " & ".join(map(_escape_latex, self.columns)) + r" \\",
            r"\midrule",
            *(" & ".join(_escape_latex(cell.text) for cell in row) + r" \\" for row in self.rows),
            r"\bottomrule",
            r"\end{tabular}",
        ]
        return "\n".join(lines) + "\n"

    def numeric_columns(self) -> list[bool]:
        """Return True for each column without texts."""
        return [all(not isinstance(row[i].value, str) for row in self.rows) for i in range(len(self.columns))]


def _escape_latex(text: str) -> str:
    return "".join(LATEX.get(character, character) for character in text)


@dataclass(frozen=True)
class Metric:
    """A metric of a run and its format.

    Attributes:
        name: The column of the CSV file.
        heading: The heading of the table.
        of: Returns the value of a run; None if the run does not report the metric.
        form: Formats a value.
        interval: True to add the confidence interval.
        shown: False for a metric that is only in the CSV file.
        bounds: The possible values.
    """

    name: str
    heading: str
    of: Callable[[Run], float | None]
    form: Callable[[float], str]
    interval: bool = False
    shown: bool = True
    bounds: Bounds = NOT_NEGATIVE


def _format_by(spec: str) -> Callable[[float], str]:
    return lambda value: format(value, spec)


def _format_in(unit: str) -> Callable[[float], str]:
    return partial(format_quantity, unit=unit)


def table_metrics(groups: Sequence[Group], sharpness: Mapping[Run, float]) -> list[Metric]:
    """Return the columns of the tables. A column for targets or sharpness exists only if a run has a value."""

    def summary_reader(name: str) -> Callable[[Run], float | None]:
        return lambda run: run.summary[name]

    def custom_reader(name: str) -> Callable[[Run], float | None]:
        return lambda run: custom_metrics_of(run.summary).get(name)

    runs = runs_of(groups)
    metric_spec = groups[0].first.metric_spec
    main = metric_spec.main
    bounds = metric_spec.bounds(main)
    read_worst = summary_reader("client_worst")
    columns = [
        Metric(
            name,
            metric_heading(name),
            summary_reader(name),
            _format_by(".4f"),
            interval=True,
            bounds=metric_spec.bounds(name),
        )
        for name in dict.fromkeys((main, *metric_spec.names))
    ]
    columns += [
        Metric(
            f"best_{main}",
            f"best {metric_heading(main)}",
            summary_reader(f"best_{main}"),
            _format_by(".4f"),
            shown=False,
            bounds=bounds,
        ),
        Metric("client_worst", "worst client", read_worst, _format_by(".4f"), interval=True, bounds=bounds),
    ]
    if main != "loss":
        read_loss = summary_reader("loss")
        columns.append(Metric("loss", "loss", read_loss, _format_by(".4f"), interval=True, bounds=UNBOUNDED))
    columns += [
        Metric(name, name, custom_reader(name), _format_by(".4g"), interval=True, bounds=metric_spec.bounds(name))
        for name in dict.fromkeys(chain.from_iterable(custom_metrics_of(run.summary) for run in runs))
    ]
    if any("privacy" in run.summary for run in runs):
        columns.append(Metric("epsilon", "ε", _read_epsilon, _format_by(".3g")))
    if any(run.summary["time_to_target"] is not None for run in runs):
        heading = heading_of_times("time to target", groups)
        read = summary_reader("time_to_target")
        columns.append(Metric("time_to_target", heading, read, _format_by(".4g"), interval=True))
    columns += [
        Metric("time", heading_of_times("time", groups), summary_reader("time"), _format_by(".4g")),
        Metric("steps", "steps", summary_reader("steps"), mean_count_text),
        Metric("tasks", "tasks", summary_reader("tasks"), mean_count_text, shown=False),
        Metric("bytes", "sent", lambda run: run.summary["bytes_down"] + run.summary["bytes_up"], _format_in("B")),
        Metric("bytes_down", "down", summary_reader("bytes_down"), _format_in("B"), shown=False),
        Metric("bytes_up", "up", summary_reader("bytes_up"), _format_in("B"), shown=False),
        Metric("flops", "computed", summary_reader("flops"), _format_in("FLOP")),
        *_energy_columns(runs),
        Metric("staleness_mean", "staleness", summary_reader("staleness_mean"), _format_by(".2f")),
        Metric("staleness_max", "most stale", summary_reader("staleness_max"), _format_by("g"), shown=False),
        Metric("idle", "idle", lambda run: run.idle_fraction, _format_by(".0%")),
        Metric("faults", "faults", summary_reader("faults"), _format_by("g"), shown=False),
        *_bad_client_columns(runs),
        Metric("wall", "real seconds", summary_reader("wall"), _format_by(".3g"), shown=False),
    ]
    if sharpness:
        heading = f"sharpness (ρ = {RHO:g})"
        columns.append(Metric("sharpness", heading, sharpness.get, _format_by(".4f"), interval=True, bounds=UNBOUNDED))
    return columns


def _read_epsilon(run: Run) -> float | None:
    """Return the privacy loss epsilon of a run; None if the run has no privacy or epsilon is infinite."""
    privacy: dict[str, float | None] = run.summary.get("privacy", {})
    return privacy.get("epsilon")


def _energy_columns(runs: Sequence[Run]) -> list[Metric]:
    """Return a list with the energy column; an empty list if no run reports its energy."""
    if not any("energy" in run.summary for run in runs):
        return []
    return [Metric("energy", "energy", lambda run: run.summary.get("energy"), _format_in("J"))]


def _bad_client_columns(runs: Sequence[Run]) -> list[Metric]:
    """Return columns for failed tasks and quarantined clients; an empty list if no run has a failed task."""
    if not any(run.summary["dropped"] for run in runs):
        return []
    return [
        Metric("dropped", "dropped", lambda run: run.summary["dropped"], _format_by("g")),
        Metric("quarantined", "quarantined", lambda run: len(run.summary["quarantined"]), _format_by("g")),
    ]


def make_method_table(groups: Sequence[Group], columns: Sequence[Metric]) -> Table:
    """Return a table with one row per group.

    A cell has the mean over seeds. An asterisk marks a significant difference from the first group.
    """
    rows, lines = [], []
    base = _seed_values(groups[0], columns[0])
    for group in groups:
        p = None if group is groups[0] else welch_p_value(_seed_values(group, columns[0]), base)
        row = [Cell(group.label, group.label), Cell(str(len(group.runs)), len(group.runs))]
        line: dict[str, object] = {"method": group.label, "seeds": len(group.runs)}
        for metric in columns:
            values = _seed_values(group, metric)
            mean = mean_or_nan(values)
            low, high = confidence_interval(values, metric.bounds) or (None, None)
            # The mean of only some seeds would hide that the others have no value.
            if len(values) < len(group.runs):
                mean, low, high = float("nan"), None, None
            mark = metric is columns[0] and is_significant(p)
            if metric.shown:
                row.append(_estimate_cell(metric, values, len(group.runs), mark=mark))
            line |= {metric.name: mean, f"{metric.name}_low": low, f"{metric.name}_high": high}
        row.insert(3, Cell(_or_dash(p, "{:.2g}".format), p))
        rows.append(tuple(row))
        lines.append(line | {f"p_{columns[0].name}": p})
    headings = ["method", "seeds", *(metric.heading for metric in columns if metric.shown)]
    headings.insert(3, "p")
    return Table(
        "methods", "Methods", _methods_note(groups, columns), tuple(headings), tuple(rows), pd.DataFrame(lines)
    )


def _methods_note(groups: Sequence[Group], columns: Sequence[Metric]) -> str:
    counts = {len(group.runs) for group in groups}
    if counts == {1}:
        return " ".join([SINGLE_SEEDS_NOTE, *_time_notes(groups, columns)])
    sentences = ["Mean over seeds [95 % confidence interval: Student's t, clipped to possible values]."]
    if len(groups) > 1:
        sentences.append(
            f"p is Welch's t-test of the {columns[0].heading} against {groups[0].label}, two-sided, not corrected for "
            f"the number of methods; * marks p < {LEVEL:g}."
        )
    if 1 in counts:
        sentences.append("A method with one seed has neither an interval nor a p.")
    return " ".join([*sentences, *_time_notes(groups, columns)])


def _time_notes(groups: Sequence[Group], columns: Sequence[Metric]) -> list[str]:
    """Return a sentence for each reason why the times in the table cannot be compared."""
    notes = []
    if not have_same_clock(groups):
        notes.append("The runs have different clocks, so their times cannot be compared.")
    if not have_same_target(groups) and any(metric.name == "time_to_target" for metric in columns):
        notes.append("The runs have different targets, so their times to the target cannot be compared.")
    return notes


def _seed_values(group: Group, metric: Metric) -> list[float]:
    values = [metric.of(run) for run in group.runs]
    return [float(value) for value in values if value is not None]


def _estimate_cell(metric: Metric, values: Sequence[float], seeds: int, *, mark: bool) -> Cell:
    """Return the cell of a metric's mean over seeds.

    `values` has one value per seed that reports the metric. `seeds` is the number of all seeds. `mark` adds an
    asterisk.
    """
    if len(values) < seeds and metric.name == "time_to_target":
        return Cell(f"reached in {len(values)} of {seeds}", None)
    if len(values) < seeds:
        return Cell(NONE, None)
    text = metric.form(mean_or_nan(values))
    if metric.interval:
        text = estimate_text(values, metric.form, metric.bounds)
    return Cell(text + "*" * mark, mean_or_nan(values))


def _or_dash(value: float | None, form: Callable[[float], str]) -> str:
    if value is None:
        return NONE
    return form(float(value))


def make_run_table(groups: Sequence[Group], columns: Sequence[Metric]) -> Table:
    """Return a table with one row per run. The CSV also has the command that reproduces the run."""
    rows, lines = [], []
    shown = [metric for metric in columns if metric.shown]
    for group in groups:
        for run in group.runs:
            numbers = {metric.name: metric.of(run) for metric in columns}
            cells = [Cell(_or_dash(numbers[metric.name], metric.form), numbers[metric.name]) for metric in shown]
            ended = _end_reason_and_note(run)
            digest = str(run.summary["model_sha256"])
            rows.append(
                (
                    Cell(group.label, group.label),
                    Cell(str(run.seed), run.seed),
                    *cells,
                    Cell(ended, ended),
                    Cell(digest[:8], digest),
                )
            )
            lines.append(
                {"method": group.label, "seed": run.seed, **numbers, "ended_by": ended, "model_sha256": digest}
                | {"directory": str(run.directory), "command": run.command}
            )
    headings = ("method", "seed", *(metric.heading for metric in columns if metric.shown), "ended by", "model")
    note = "One row per run. `model` is the start of the model's SHA-256."
    return Table("runs", "Runs", note, headings, tuple(rows), pd.DataFrame(lines))


def _end_reason_and_note(run: Run) -> str:
    reason = str(run.summary["reason"])
    if run.summary.get("note"):
        return f"{reason}: {run.summary['note']}"
    return reason


def configuration_tables(groups: Sequence[Group]) -> tuple[Table, Table]:
    """Return a table of the settings that differ between groups, and a table of all settings."""
    flat = {group.label: _flatten_config(group.first) for group in groups}
    names = dict.fromkeys(chain.from_iterable(flat.values()))
    whole = [(name, [values.get(name, NONE) for values in flat.values()]) for name in names]
    differ = [(name, values) for name, values in whole if len(set(values)) > 1]
    note = "The options of the runs, the four choices of the methods, and the versions of packages."
    return (
        _settings_table("differences", "Differences", "Settings in which the methods differ.", flat, differ),
        _settings_table("configuration", "All settings", note, flat, whole),
    )


def _settings_table(
    name: str, title: str, note: str, labels: Iterable[str], lines: Sequence[tuple[str, list[str]]]
) -> Table:
    """Return a table of settings. Each of the `lines` has the name of a setting and its value in each column."""
    columns = ("setting", *labels)
    texts = [[setting, *values] for setting, values in lines]
    rows = tuple(tuple(Cell(text, text) for text in row) for row in texts)
    return Table(name, title, note, columns, rows, pd.DataFrame(texts, columns=list(columns)))


def _flatten_config(run: Run) -> dict[str, str]:
    """Return the configuration of a run as texts by name.

    The result contains the options, the method's settings, the model's number of parameters, and the versions of
    packages. Settings of the method have dotted names.
    """
    config = run.config
    flat = {name: value_text(value) for name, value in run.options.items() if name not in ("seed", "out", "quiet")}
    for axis, choice in config["method"].items():
        flat |= flatten_description(axis, choice)
    flat["parameters"] = str(config["resolved"]["parameters"])
    flat |= {f"version of {name}": str(value) for name, value in config["versions"].items()}
    flat["commit"] = value_text(config.get("commit"))
    return flat
