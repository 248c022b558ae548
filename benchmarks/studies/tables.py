"""What a study came to, as a table and in words: every sentence is computed from the runs and the paper's numbers."""

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import combinations

import numpy as np
import pandas as pd
from rich import box
from rich.table import Table

from benchmarks.studies.metrics import Metric
from benchmarks.studies.study import Claim, Study
from benchmarks.studies.weak import ACCURACIES, Means
from fedraa.report.statistics import LEVEL, ci95, mean, significant, welch

MOST_NAMED = 8  # disagreements that are told one by one


@dataclass(frozen=True)
class Entry:
    """One number of a table: a metric of a cell over the study's seeds, NaN where a run failed.

    `p` is Welch's test against the reference row of the same column.
    """

    row: str
    column: str
    metric: Metric
    by_seed: tuple[float, ...]
    paper: float | None
    p: float | None = None

    @property
    def values(self) -> tuple[float, ...]:
        return tuple(value for value in self.by_seed if not math.isnan(value))

    @property
    def failed(self) -> int:
        return len(self.by_seed) - len(self.values)

    @property
    def mean(self) -> float:
        return mean(self.values)

    @property
    def half_width(self) -> float | None:
        """Of the 95 % confidence interval of the mean; None where there is none."""
        return ci95(self.values)

    @property
    def text(self) -> str:
        if not self.values:
            return "failed"
        form, reached = self.metric.form, sum(map(math.isfinite, self.values))
        some_failed = f" ({self.failed} failed)" if self.failed else ""
        if reached < len(self.values):
            return f"reached in {reached} of {len(self.values)}{some_failed}"
        spread = "" if self.half_width is None else f" ± {self.half_width:{form}}"
        mark = "*" if significant(self.p) else ""
        return f"{self.mean:{form}}{spread}{mark}{some_failed}"


def entries(study: Study, values: pd.DataFrame) -> list[Entry]:
    """All numbers of the table, row by row."""
    taken = {key: group["value"].to_numpy() for key, group in values.groupby(["row", "column", "metric"], sort=False)}
    found = []
    for cell in study.cells:
        for metric in study.metrics:
            all_seeds = taken[cell.row, cell.column, metric.name]
            here = tuple(all_seeds[~np.isnan(all_seeds)].tolist())
            base = taken.get((study.reference, cell.column, metric.name), np.empty(0))
            p = None if cell.row == study.reference else welch(here, tuple(base[~np.isnan(base)].tolist()))
            by_seed = tuple(all_seeds.tolist())
            found.append(Entry(cell.row, cell.column, metric, by_seed, cell.paper.get(metric.name), p))
    return found


def frame(study: Study, found: Sequence[Entry]) -> pd.DataFrame:
    """For the CSV: one line per number.

    What the paper measures in other units or at another size can still be compared as multiples of the reference
    row, ours and the paper's.
    """
    base = {(entry.column, entry.metric.name): entry for entry in found if entry.row == study.reference}
    lines = []
    for entry in found:
        to = base.get((entry.column, entry.metric.name))
        lines.append(
            {
                "column": entry.column,
                "row": entry.row,
                "metric": entry.metric.name,
                "n": len(entry.values),
                "failed": entry.failed,
                "mean": entry.mean,
                "ci95": entry.half_width,
                "p_against_reference": entry.p,
                "of_reference": None if to is None else _ratio(entry.mean, to.mean),
                "paper": entry.paper,
                "paper_of_reference": None if to is None else _ratio(entry.paper, to.paper),
                "by_seed": " ".join(f"{value:.6g}" for value in entry.by_seed),
            }
        )
    return pd.DataFrame(lines)


def _ratio(a: float | None, b: float | None) -> float | None:
    """None where it has no meaning: something is missing, failed, not reached or 0."""
    if not a or not b or not math.isfinite(a) or not math.isfinite(b):
        return None
    return a / b


def grid(study: Study, found: Sequence[Entry]) -> tuple[list[str], list[list[str]]]:
    """Headings and rows of the table as text; the paper's number is in brackets."""
    places = [(column, metric.name) for column in study.columns for metric in study.metrics]
    cells = {(entry.row, entry.column, entry.metric.name): entry for entry in found}
    headings = ["", *(f"{column} {name}".strip() for column, name in places)]
    rows = []
    for row in study.rows:
        here = (cells.get((row, *place)) for place in places)
        rows.append([row, *("" if entry is None else entry.text + _paper(entry) for entry in here)])
    return headings, rows


def _paper(entry: Entry) -> str:
    return "" if entry.paper is None else f" [{entry.paper:g}]"


def means(found: Sequence[Entry]) -> Means:
    """The mean accuracies of every column."""
    told: dict[tuple[str, str], list[tuple[str, float]]] = {}
    for entry in found:
        if entry.metric.name in ACCURACIES and entry.values:
            told.setdefault((entry.column, entry.metric.name), []).append((entry.row, entry.mean))
    return told


def caption(study: Study, found: Sequence[Entry]) -> str:
    """How the table is to be read."""
    seeds = len(study.seeds)
    parts = [f"mean ± 95 % confidence interval over n = {seeds} seeds"]
    if seeds == 1:
        parts = [f"ONE seed ({study.seeds[0]}): no interval, and nothing is significant"]
    if any(significant(entry.p) for entry in found):
        parts.append(f"* differs from {study.reference}, Welch's t-test, p < {LEVEL:g}")
    if any(entry.paper is not None for entry in found):
        parts.append("[ ] the paper's")
    return "; ".join(parts)


def rich_table(study: Study, found: Sequence[Entry]) -> Table:
    headings, rows = grid(study, found)
    table = Table(title=study.title, caption=caption(study, found), box=box.SIMPLE_HEAD, caption_justify="left")
    for number, heading in enumerate(headings):
        table.add_column(heading, justify="right" if number else "left")
    for row in rows:
        table.add_row(*(text.replace("[", r"\[") for text in row))
    return table


def markdown(study: Study, found: Sequence[Entry]) -> str:
    return markdown_table(*grid(study, found))


def markdown_table(headings: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Lines of Markdown, without one at the end."""
    lines = [headings, ["---"] * len(headings), *rows]
    return "\n".join("| " + " | ".join(text.replace("|", r"\|") for text in line) + " |" for line in lines)


def latex(study: Study, found: Sequence[Entry]) -> str:
    """A tabular for booktabs."""
    headings, rows = grid(study, found)
    lines = [" & ".join(map(_tex, line)) + r" \\" for line in (headings, *rows)]
    body = "\n".join([r"\toprule", lines[0], r"\midrule", *lines[1:], r"\bottomrule"])
    note = _tex(f"{study.title}. {caption(study, found)}.")
    return f"% {note}\n\\begin{{tabular}}{{l{'r' * (len(headings) - 1)}}}\n{body}\n\\end{{tabular}}\n"


_TEX = str.maketrans({c: "\\" + c for c in "%&#_{}"} | {"±": r"$\pm$", "α": r"$\alpha$", "δ": r"$\delta$"})
_TEX |= {ord(c): f"${name}$" for c, name in {"β": r"\beta", "μ": r"\mu", "ρ": r"\rho", "×": r"\times"}.items()}


def _tex(text: str) -> str:
    return text.translate(_TEX)


def findings(study: Study, found: Sequence[Entry]) -> list[str]:
    """In words: where the orders of the paper hold here, where they are reversed, and what was claimed besides."""
    told = [sentence for group in _compared(study, found) for sentence in _orders(group)]
    told += [_judged(claim, column, found) for claim in study.claims for column in study.columns]
    if study.fixed is not None:
        return [*told, *_bests(study, study.fixed, found)]
    return told or list(_against_reference(study, found))


def _against_reference(study: Study, found: Sequence[Entry]) -> Iterator[str]:
    """Where nobody has ordered the rows: which are better and worse than the reference beyond the noise."""
    for column in study.columns:
        for metric in study.metrics[:2]:
            here = {e.row: e for e in found if (e.column, e.metric) == (column, metric) and e.values}
            base = here.pop(study.reference, None)
            if base is None or metric.better is None:
                continue
            if math.isfinite(base.mean):
                told = _clearly(base, list(here.values()))
            else:
                reached = [_with_mean(e) for e in here.values() if math.isfinite(e.mean)]
                told = f"{base.row} {base.text}; reached in every run: {', '.join(reached) or 'none'}"
            yield f"{metric.name}{_in(column)}: {told}."


def _clearly(base: Entry, others: Sequence[Entry]) -> str:
    """Which entries are better and worse than one that has a mean, and which have none."""
    clear = [e for e in others if significant(e.p)]
    better = [_with_mean(e) for e in clear if _advantage(e, base) > 0]
    worse = [_with_mean(e) for e in clear if _advantage(e, base) < 0]
    never = [e.row for e in others if not math.isfinite(e.mean)]
    told = f"better than {base.row} ({base.text}) beyond the noise: {', '.join(better) or 'none'}"
    told += f"; worse: {', '.join(worse) or 'none'}"
    return told + (f"; not reached in every run: {', '.join(never)}" if never else "")


def _with_mean(entry: Entry) -> str:
    return f"{entry.row} ({entry.mean:{entry.metric.form}})"


def _bests(study: Study, fixed: str, found: Sequence[Entry]) -> Iterator[str]:
    """Every row at its own best column beside the one that all share, and the order of the rows in both."""
    metric = study.metrics[0]
    best: dict[str, Entry] = {}
    shared: dict[str, Entry] = {}
    for entry in found:
        if entry.metric == metric and entry.values:
            if entry.column == fixed:
                shared[entry.row] = entry
            if entry.row not in best or _advantage(entry, best[entry.row]) > 0:
                best[entry.row] = entry
    for row, entry in best.items():
        beside = f" ({shared[row].text} at {fixed})" if row in shared else ""
        edge = ", THE EDGE of the grid: its best may lie beyond" if at_edge(study, entry.column) else ""
        yield f"{row}: best at {entry.column}{edge}, {metric.name} {entry.text}{beside}."
    for told, entries_of in ((f"at {fixed}", shared), ("each at its best", best)):
        order = sorted(entries_of.values(), key=lambda entry: entry.mean, reverse=metric.better == "more")
        yield f"Order {told}: {', '.join(entry.row for entry in order)}."


def at_edge(study: Study, column: str) -> bool:
    """Whether a column is the first or the last of the values that rows choose from."""
    return study.fixed is not None and column in (study.columns[0], study.columns[-1])


def best_of(entries_of: Sequence[Entry]) -> Entry | None:
    """The best number of one metric; None if none is better than another, or is known."""
    known = [entry for entry in entries_of if entry.values and math.isfinite(entry.mean) and entry.metric.better]
    if not known:
        return None
    return (max if known[0].metric.better == "more" else min)(known, key=lambda entry: entry.mean)


def _compared(study: Study, found: Sequence[Entry]) -> Iterator[list[Entry]]:
    """Numbers of one column and metric that the paper orders."""
    for column in study.columns:
        for metric in study.metrics:
            here = [e for e in found if (e.column, e.metric.name) == (column, metric.name)]
            here = [e for e in here if e.paper is not None and e.values and metric.better]
            if len(here) > 1:
                yield here


def _orders(group: Sequence[Entry]) -> Iterator[str]:
    """The paper's orders of all pairs, against ours."""
    pairs = [_by_paper(a, b) for a, b in combinations(group, 2) if a.paper != b.paper]
    agree = [pair for pair in pairs if _advantage(*pair) > 0]
    clear = sum(_clear(*pair) for pair in agree)
    where = f"{group[0].metric.name}{', ' if group[0].column else ''}{group[0].column}"
    yield f"{where}: {len(agree)} of the paper's {len(pairs)} orders hold here, {clear} of them beyond the noise."
    against = [pair for pair in pairs if pair not in agree]
    clearly = [pair for pair in against if _clear(*pair)]
    named = clearly[:MOST_NAMED] or against[:2]
    for better, worse in named:
        yield f"{where}: in the paper {_says(better, worse, paper=True)}; here {_says(better, worse, paper=False)}."
    if left := len(against) - len(named):
        beyond = max(0, len(clearly) - len(named))
        yield f"{where}: and {left} more orders do not hold, {beyond} of them beyond the noise."


def _judged(claim: Claim, column: str, found: Sequence[Entry]) -> str:
    """Whether what was claimed of two rows is so here."""
    named = {e.row: e for e in found if e.column == column and e.metric.name == claim.metric}
    if not {claim.better, claim.worse} <= named.keys():
        return f"{claim.source}: {claim.better} and {claim.worse} were not both run{_in(column)}."
    better, worse = named[claim.better], named[claim.worse]
    if not (better.values and worse.values):
        return f"{claim.source}: a run of {claim.better} or {claim.worse} failed{_in(column)}."
    holds = "holds" if _advantage(better, worse) > 0 else "DOES NOT HOLD"
    return f"{claim.source}: {holds} here{_in(column)}: {_says(better, worse, paper=False)} ({claim.metric})."


def _in(column: str) -> str:
    return f" at {column}" if column else ""


def _by_paper(a: Entry, b: Entry) -> tuple[Entry, Entry]:
    """The pair, first the one that is better in the paper."""
    assert a.paper is not None
    assert b.paper is not None
    return (a, b) if (a.paper > b.paper) == (a.metric.better == "more") else (b, a)


def _advantage(better: Entry, worse: Entry) -> float:
    """By how much the first is better here."""
    if better.mean == worse.mean:
        return 0.0
    return better.mean - worse.mean if better.metric.better == "more" else worse.mean - better.mean


def _clear(a: Entry, b: Entry) -> bool:
    return significant(welch(a.values, b.values))


def _says(a: Entry, b: Entry, *, paper: bool) -> str:
    form = a.metric.form
    if paper:
        return f"{a.row} ({a.paper:g}) is ahead of {b.row} ({b.paper:g})"
    p = welch(a.values, b.values)
    noise = "no test" if p is None else f"p = {p:.2g}" + ("" if significant(p) else ", within the noise")
    numbers = f"{a.row} {a.mean:{form}}, {b.row} {b.mean:{form}}"
    return f"{numbers}, {noise}"
