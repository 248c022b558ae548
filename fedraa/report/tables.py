"""Tables as sortable text for the page, as CSV for scripts and as LaTeX for papers."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

import pandas as pd

from fedraa.numbers import quantity
from fedraa.objectives.figures import Direction
from fedraa.report.differences import nested
from fedraa.report.landscape import RHO
from fedraa.report.runs import Group, Run, own_figures, words
from fedraa.report.statistics import LEVEL, bounds_of, estimate_text, interval95, mean, significant, welch

NONE = "–"
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
    "*": r"$^{*}$",
}


@dataclass(frozen=True)
class Cell:
    """The text of a cell and its sort key. A `value` of None is sorted last."""

    text: str
    value: float | str | None


@dataclass(frozen=True)
class Table:
    """A table. `frame` is the content of the CSV file, with plain numbers; `name` is the name of its files."""

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
        numeric = [all(not isinstance(row[i].value, str) for row in self.rows) for i in range(len(self.columns))]
        lines = [
            f"% {self.title}. {self.note}",
            rf"\begin{{tabular}}{{{''.join('r' if right else 'l' for right in numeric)}}}",
            r"\toprule",
            " & ".join(map(_escape, self.columns)) + r" \\",
            r"\midrule",
            *(" & ".join(_escape(cell.text) for cell in row) + r" \\" for row in self.rows),
            r"\bottomrule",
            r"\end{tabular}",
        ]
        return "\n".join(lines) + "\n"


def _escape(text: str) -> str:
    return "".join(LATEX.get(character, character) for character in text)


@dataclass(frozen=True)
class Metric:
    """A metric of a run and its format.

    `interval` adds the confidence interval; without `shown` it is only in the CSV.
    """

    name: str
    heading: str
    of: Callable[[Run], float | None]
    form: Callable[[float], str]
    interval: bool = False
    shown: bool = True
    better: Direction = "min"


def heading(name: str) -> str:
    """Return the name of a metric for readers."""
    return name.replace("_", " ")


def _form(spec: str) -> Callable[[float], str]:
    return lambda value: format(value, spec)


def _unit(unit: str) -> Callable[[float], str]:
    return partial(quantity, unit=unit)


def metrics(groups: Sequence[Group], sharpness: Mapping[Run, float]) -> list[Metric]:
    """Return the columns of the tables. Targets and sharpness appear only if a run has them."""

    def summary(name: str) -> Callable[[Run], float | None]:
        return lambda run: run.summary[name]

    def own(name: str) -> Callable[[Run], float | None]:
        return lambda run: own_figures(run.summary).get(name)

    names = dict.fromkeys(name for group in groups for run in group.runs for name in own_figures(run.summary))
    figures = groups[0].first.figures
    main, better = figures.main, figures.better(figures.main)
    judged = dict.fromkeys((main, *figures.names))
    found = [
        *(
            Metric(name, heading(name), summary(name), _form(".4f"), interval=True, better=figures.better(name))
            for name in judged
        ),
        Metric(
            f"best_{main}", f"best {heading(main)}", summary(f"best_{main}"), _form(".4f"), shown=False, better=better
        ),
        Metric("client_worst", "worst client", summary("client_worst"), _form(".4f"), interval=True, better=better),
        *([] if main == "loss" else [Metric("loss", "loss", summary("loss"), _form(".4f"), interval=True)]),
        *(Metric(name, name, own(name), _form(".4g"), interval=True, better=figures.better(name)) for name in names),
        Metric("time_to_target", "time to target", summary("time_to_target"), _form(".4g"), interval=True),
        Metric("time", "time", summary("time"), _form(".4g")),
        Metric("steps", "steps", summary("steps"), _form(".5g")),
        Metric("tasks", "tasks", summary("tasks"), _form(".5g"), shown=False),
        Metric("bytes", "sent", lambda run: run.summary["bytes_down"] + run.summary["bytes_up"], _unit("B")),
        Metric("bytes_down", "down", summary("bytes_down"), _unit("B"), shown=False),
        Metric("bytes_up", "up", summary("bytes_up"), _unit("B"), shown=False),
        Metric("flops", "computed", summary("flops"), _unit("FLOP")),
        Metric("staleness_mean", "staleness", summary("staleness_mean"), _form(".2f")),
        Metric("staleness_max", "most stale", summary("staleness_max"), _form("g"), shown=False),
        Metric("idle", "idle", lambda run: run.idle_share, _form(".0%")),
        Metric("faults", "faults", summary("faults"), _form("g"), shown=False),
        *_of_bad_clients(groups),
        Metric("wall", "real seconds", summary("wall"), _form(".3g"), shown=False),
    ]
    if sharpness:
        found.append(Metric("sharpness", f"sharpness (ρ = {RHO:g})", sharpness.get, _form(".4f"), interval=True))
    if all(run.summary["time_to_target"] is None for group in groups for run in group.runs):
        found = [metric for metric in found if metric.name != "time_to_target"]
    return found


def _of_bad_clients(groups: Sequence[Group]) -> list[Metric]:
    """Return the numbers of failed tasks and quarantined clients, if there are any."""
    if not any(run.summary["dropped"] for group in groups for run in group.runs):
        return []
    return [
        Metric("dropped", "dropped", lambda run: run.summary["dropped"], _form("g")),
        Metric("quarantined", "quarantined", lambda run: len(run.summary["quarantined"]), _form("g")),
    ]


def by_method(groups: Sequence[Group], columns: Sequence[Metric]) -> Table:
    """Return a table with one row per group: means over its seeds with 95 % intervals, tested against group one."""
    rows, lines = [], []
    base = _values(groups[0], columns[0])
    for group in groups:
        p = None if group is groups[0] else welch(_values(group, columns[0]), base)
        row = [Cell(group.label, group.label), Cell(str(len(group.runs)), len(group.runs))]
        line: dict[str, object] = {"method": group.label, "seeds": len(group.runs)}
        for metric in columns:
            values = _values(group, metric)
            bounds = bounds_of([value for each in groups for value in _values(each, metric)], metric.better)
            low, high = interval95(values, bounds) or (None, None)
            mark = metric is columns[0] and significant(p)
            if metric.shown:
                row.append(_estimate(metric, values, bounds, len(group.runs), mark=mark))
            line |= {metric.name: mean(values), f"{metric.name}_low": low, f"{metric.name}_high": high}
        row.insert(3, Cell(NONE if p is None else f"{p:.2g}", p))
        rows.append(tuple(row))
        lines.append(line | {f"p_{columns[0].name}": p})
    headings = ["method", "seeds", *(metric.heading for metric in columns if metric.shown)]
    headings.insert(3, "p")
    return Table("methods", "Methods", _note(groups, columns), tuple(headings), tuple(rows), pd.DataFrame(lines))


def _note(groups: Sequence[Group], columns: Sequence[Metric]) -> str:
    counts = {len(group.runs) for group in groups}
    if counts == {1}:
        return "One seed per method: no interval and no test of significance; a difference may be chance."
    single = " A method with one seed has neither." if 1 in counts else ""
    tested = (
        f" p is Welch's t-test of the {columns[0].heading} against {groups[0].label}, two-sided, not corrected for the "
        f"number of methods; * marks p < {LEVEL:g}."
    )
    interval = "Mean over seeds [95 % confidence interval: Student's t, clipped to possible values]."
    return interval + (tested if len(groups) > 1 else "") + single


def _values(group: Group, metric: Metric) -> list[float]:
    """Return the metric of every seed that reports it."""
    return [float(value) for run in group.runs if (value := metric.of(run)) is not None]


def _estimate(metric: Metric, values: Sequence[float], bounds: tuple[float, float], seeds: int, *, mark: bool) -> Cell:
    if len(values) < seeds:
        return Cell(f"reached in {len(values)} of {seeds}" if metric.name == "time_to_target" else NONE, None)
    text = estimate_text(values, metric.form, bounds) if metric.interval else metric.form(mean(values))
    return Cell(text + ("*" if mark else ""), mean(values))


def _exact(metric: Metric, value: float | None) -> Cell:
    return Cell(NONE if value is None else metric.form(float(value)), value)


def by_run(groups: Sequence[Group], columns: Sequence[Metric]) -> Table:
    """Return a table with one row per run. The CSV also has the command that reproduces it."""
    rows, lines = [], []
    for group in groups:
        for run in group.runs:
            numbers = {metric.name: metric.of(run) for metric in columns}
            cells = [_exact(metric, numbers[metric.name]) for metric in columns if metric.shown]
            ended, digest = _ended(run), str(run.summary["model_sha256"])
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
    note = "One row per run. The model is told by the start of its SHA-256."
    return Table("runs", "Runs", note, headings, tuple(rows), pd.DataFrame(lines))


def _ended(run: Run) -> str:
    """Return the reason of the run's end and the note of its summary."""
    note = run.summary.get("note")
    return f"{run.summary['reason']}: {note}" if note else str(run.summary["reason"])


def configuration(groups: Sequence[Group]) -> tuple[Table, Table]:
    """Return a table of the settings that differ between the groups, and one of the whole resolved configuration."""
    flat = {group.label: _flat(group.first) for group in groups}
    names = list(dict.fromkeys(name for values in flat.values() for name in values))
    whole = [(name, [values.get(name, NONE) for values in flat.values()]) for name in names]
    differ = [(name, values) for name, values in whole if len(set(values)) > 1]
    return (
        _settings("differences", "What differs", "Settings in which the methods differ.", flat, differ),
        _settings("configuration", "All settings", "Flags, the method's four choices, versions.", flat, whole),
    )


def _settings(
    name: str, title: str, note: str, labels: Mapping[str, object], lines: Sequence[tuple[str, list[str]]]
) -> Table:
    columns = ("setting", *labels)
    rows = tuple(tuple(Cell(text, text) for text in (setting, *values)) for setting, values in lines)
    frame = pd.DataFrame([[setting, *values] for setting, values in lines], columns=list(columns))
    return Table(name, title, note, columns, rows, frame)


def _flat(run: Run) -> dict[str, str]:
    """Return the configuration as `part.name`: flags, choices, and the resolved values that fit on a line."""
    config = run.config
    found = {name: words(value) for name, value in run.flags.items() if name not in ("seed", "out", "quiet")}
    for axis, choice in config["method"].items():
        found |= nested(axis, choice)
    found["parameters"] = f"{config['resolved']['parameters']}"
    found |= {f"version of {name}": str(value) for name, value in config["versions"].items()}
    return found | {"commit": str(config.get("commit"))}
