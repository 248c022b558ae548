"""A study's results as a table and as sentences, beside the paper's numbers."""

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import combinations, product

import numpy as np
import pandas as pd
from rich import box
from rich.table import Table

from benchmarks.studies.metrics import Metric
from benchmarks.studies.study import Claim, Study
from benchmarks.studies.verdict import paired_p_value
from benchmarks.studies.weak import Means, group_accuracies
from fedraa.report.statistics import LEVEL, half_width95, is_significant, mean_or_nan

# Maximum number of listed row pairs whose order contradicts the paper's order.
MAX_NAMED = 8


@dataclass(frozen=True)
class Entry:
    """A metric of one cell of a study's table.

    Attributes:
        row: The row of the cell.
        column: The column of the cell.
        metric: The metric.
        by_seed: A value per seed; NaN if the run failed.
        paper: The value in the paper, if the paper has one.
        p: The p-value of a paired test against the reference row in the same column.
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
        return mean_or_nan(self.values)

    @property
    def half_width(self) -> float | None:
        """Half of the mean's 95 % confidence interval; None for fewer than two finite values."""
        return half_width95(self.values)

    @property
    def text(self) -> str:
        """The mean with its interval. If a seed missed the target, a text such as `reached in 2 of 3`."""
        if not self.values:
            return "failed"
        form = self.metric.form
        failures = f" ({self.failed} failed)" if self.failed else ""
        reached = sum(map(math.isfinite, self.values))
        if reached < len(self.values):
            return f"reached in {reached} of {len(self.values)}{failures}"
        text = f"{self.mean:{form}}"
        if self.half_width is not None:
            text += f" ± {self.half_width:{form}}"
        if is_significant(self.p):
            text += "*"
        return text + failures


def make_entries(study: Study, values: pd.DataFrame) -> list[Entry]:
    """Return the entries of a study's table, row by row, from the result of `measure_runs`."""
    groups = values.groupby(["row", "column", "metric"], sort=False)
    by_place = {key: group["value"].to_numpy() for key, group in groups}
    numbers = []
    for cell in study.cells:
        for metric in study.metrics:
            all_seeds = by_place[cell.row, cell.column, metric.name]
            p = None
            if cell.row != study.reference:
                base = by_place.get((study.reference, cell.column, metric.name), np.empty(0))
                p = paired_p_value(all_seeds.tolist(), base.tolist(), ratio=metric.own_units)
            by_seed = tuple(all_seeds.tolist())
            numbers.append(Entry(cell.row, cell.column, metric, by_seed, cell.paper.get(metric.name), p))
    return numbers


def make_frame(study: Study, numbers: Sequence[Entry]) -> pd.DataFrame:
    """Return the table of the CSV file, with a row per entry.

    `of_reference` is the mean divided by the reference row's mean. `paper_of_reference` is this ratio in the paper.
    """
    base = {(entry.column, entry.metric.name): entry for entry in numbers if entry.row == study.reference}
    lines = []
    for entry in numbers:
        reference = base.get((entry.column, entry.metric.name))
        of_reference = paper_of_reference = None
        if reference is not None:
            of_reference = _safe_ratio(entry.mean, reference.mean)
            paper_of_reference = _safe_ratio(entry.paper, reference.paper)
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
                "of_reference": of_reference,
                "paper": entry.paper,
                "paper_of_reference": paper_of_reference,
                "by_seed": " ".join(f"{value:.6g}" for value in entry.by_seed),
            }
        )
    return pd.DataFrame(lines)


def _safe_ratio(a: float | None, b: float | None) -> float | None:
    """Return a / b; None if one of them is None, not finite or 0."""
    if not a or not b or not math.isfinite(a) or not math.isfinite(b):
        return None
    return a / b


def format_grid(study: Study, numbers: Sequence[Entry]) -> tuple[list[str], list[list[str]]]:
    """Return the headings and rows of a study's table as text, with the paper's numbers in brackets."""
    places = list(product(study.columns, [metric.name for metric in study.metrics]))
    cells = {(entry.row, entry.column, entry.metric.name): entry for entry in numbers}
    headings = ["", *(f"{column} {name}".strip() for column, name in places)]
    rows = [[row, *(_cell_text(cells.get((row, *place))) for place in places)] for row in study.rows]
    return headings, rows


def _cell_text(entry: Entry | None) -> str:
    if entry is None:
        return ""
    if entry.paper is None:
        return entry.text
    return f"{entry.text} [{entry.paper:g}]"


def mean_accuracies(numbers: Sequence[Entry]) -> Means:
    """Return a list of pairs (row, mean accuracy) for each column of the study and each accuracy metric."""
    return group_accuracies((entry.row, entry.column, entry.metric.name, entry.mean) for entry in numbers)


def format_caption(study: Study, numbers: Sequence[Entry]) -> str:
    """Return the caption of a study's table, which explains ±, * and brackets."""
    seeds = len(study.seeds)
    parts = [f"mean ± 95 % confidence interval over n = {seeds} seeds"]
    if seeds == 1:
        parts = [f"ONE seed ({study.seeds[0]}): no interval, and nothing is significant"]
    if any(is_significant(entry.p) for entry in numbers):
        parts.append(f"* differs from {study.reference}, paired t-test, p < {LEVEL:g}")
    if any(entry.paper is not None for entry in numbers):
        parts.append("[ ] the paper's")
    return "; ".join(parts)


def rich_table(study: Study, numbers: Sequence[Entry]) -> Table:
    """Return a study's table for a terminal."""
    headings, rows = format_grid(study, numbers)
    table = Table(
        title=study.title, caption=format_caption(study, numbers), box=box.SIMPLE_HEAD, caption_justify="left"
    )
    table.add_column(headings[0], justify="left")
    for heading in headings[1:]:
        table.add_column(heading, justify="right")
    for row in rows:
        table.add_row(*(text.replace("[", r"\[") for text in row))
    return table


def format_markdown(study: Study, numbers: Sequence[Entry]) -> str:
    """Return a study's table in Markdown."""
    return markdown_table(*format_grid(study, numbers))


def markdown_table(headings: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Return a table in Markdown, without a newline at the end."""
    lines = [headings, ["---"] * len(headings), *rows]
    return "\n".join("| " + " | ".join(text.replace("|", r"\|") for text in line) + " |" for line in lines)


def format_latex(study: Study, numbers: Sequence[Entry]) -> str:
    """Return a study's table in LaTeX with the package booktabs."""
    headings, rows = format_grid(study, numbers)
    lines = [" & ".join(map(_escape_tex, line)) + r" \\" for line in (headings, *rows)]
    body = "\n".join([r"\toprule", lines[0], r"\midrule", *lines[1:], r"\bottomrule"])
    note = _escape_tex(f"{study.title}. {format_caption(study, numbers)}.")
    return f"% {note}\n\\begin{{tabular}}{{l{'r' * (len(headings) - 1)}}}\n{body}\n\\end{{tabular}}\n"


_TEX = str.maketrans({c: "\\" + c for c in "%&#_{}"} | {"±": r"$\pm$", "α": r"$\alpha$", "δ": r"$\delta$"})
_TEX |= {ord(c): f"${name}$" for c, name in {"β": r"\beta", "μ": r"\mu", "ρ": r"\rho", "×": r"\times"}.items()}


def _escape_tex(text: str) -> str:
    return text.translate(_TEX)


def describe_findings(study: Study, numbers: Sequence[Entry]) -> list[str]:
    """Return sentences that compare the order of the methods with the paper's order, and judge the paper's claims.

    If the study has no numbers and no claims of a paper, the sentences compare all rows with the reference row.
    """
    sentences: list[str] = []
    for group in _paper_groups(study, numbers):
        sentences += _compare_orders(group)
    for claim in study.claims:
        sentences += [_judge_claim(claim, column, numbers) for column in study.columns]
    if study.fixed is not None:
        return [*sentences, *_describe_best(study, study.fixed, numbers)]
    return sentences or list(_compare_with_reference(study, numbers))


def _compare_with_reference(study: Study, numbers: Sequence[Entry]) -> Iterator[str]:
    """Yield a sentence per column and metric. It names the rows that are better or worse than the reference row."""
    for column, metric in product(study.columns, study.metrics[:2]):
        here = {e.row: e for e in numbers if (e.column, e.metric) == (column, metric) and e.values}
        base = here.pop(study.reference, None)
        if base is None or metric.better is None:
            continue
        if math.isfinite(base.mean):
            text = _describe_significant(base, list(here.values()))
        else:
            reached = [_with_mean(e) for e in here.values() if math.isfinite(e.mean)]
            text = f"{base.row} {base.text}; reached in every run: {', '.join(reached) or 'none'}"
        yield f"{metric.name}{_at_column(column)}: {text}."


def _describe_significant(base: Entry, rivals: Sequence[Entry]) -> str:
    """Return a text that names the entries that are significantly better or worse than `base`.

    The text also names the entries without a finite mean.
    """
    clear = [e for e in rivals if is_significant(e.p)]
    better = [_with_mean(e) for e in clear if _mean_advantage(e, base) > 0]
    worse = [_with_mean(e) for e in clear if _mean_advantage(e, base) < 0]
    never = [e.row for e in rivals if not math.isfinite(e.mean)]
    text = f"better than {base.row} ({base.text}) beyond the noise: {', '.join(better) or 'none'}"
    text += f"; worse: {', '.join(worse) or 'none'}"
    if never:
        text += f"; not reached in every run: {', '.join(never)}"
    return text


def _with_mean(entry: Entry) -> str:
    return f"{entry.row} ({entry.mean:{entry.metric.form}})"


def _describe_best(study: Study, fixed: str, numbers: Sequence[Entry]) -> Iterator[str]:
    """Yield sentences on every row's best column, then on the order of the rows."""
    metric = study.metrics[0]
    best: dict[str, Entry] = {}
    shared: dict[str, Entry] = {}
    for entry in numbers:
        if entry.metric != metric or not entry.values:
            continue
        if entry.column == fixed:
            shared[entry.row] = entry
        if entry.row not in best or _mean_advantage(entry, best[entry.row]) > 0:
            best[entry.row] = entry
    for row, entry in best.items():
        sentence = f"{row}: best at {entry.column}"
        if at_edge(study, entry.column):
            sentence += " (at the edge of the grid, so a better value may lie outside)"
        sentence += f", {metric.name} {entry.text}"
        if row in shared:
            sentence += f" ({shared[row].text} at {fixed})"
        yield f"{sentence}."
    for place, by_row in ((f"at {fixed}", shared), ("each at its best", best)):
        order = sorted(by_row.values(), key=lambda entry: entry.mean, reverse=metric.better == "more")
        yield f"Order {place}: {', '.join(entry.row for entry in order)}."


def at_edge(study: Study, column: str) -> bool:
    """Return True if the column belongs to the first or the last value of a grid of hyperparameter values."""
    return study.fixed is not None and column in (study.columns[0], study.columns[-1])


def best_of(numbers: Sequence[Entry]) -> Entry | None:
    """Return the entry with the best mean; None if no mean is finite, or if no value of the metric counts as better."""
    known = [entry for entry in numbers if entry.values and math.isfinite(entry.mean) and entry.metric.better]
    if not known:
        return None
    if known[0].metric.better == "more":
        return max(known, key=lambda entry: entry.mean)
    return min(known, key=lambda entry: entry.mean)


def _paper_groups(study: Study, numbers: Sequence[Entry]) -> Iterator[list[Entry]]:
    """Yield groups of entries that have a value in the paper: a group per column and metric.

    A group of one entry is omitted, because it has nothing to compare.
    """
    for column, metric in product(study.columns, study.metrics):
        here = [e for e in numbers if (e.column, e.metric.name) == (column, metric.name)]
        here = [e for e in here if e.paper is not None and e.values and metric.better]
        if len(here) > 1:
            yield here


def _compare_orders(group: Sequence[Entry]) -> Iterator[str]:
    """Yield sentences on pairs of rows. They state how many pairs have the same order as in the paper."""
    pairs = [_better_in_paper_first(a, b) for a, b in combinations(group, 2) if a.paper != b.paper]
    agree = [pair for pair in pairs if _mean_advantage(*pair) > 0]
    clear = sum(_is_significant(*pair) for pair in agree)
    where = ", ".join(filter(None, (group[0].metric.name, group[0].column)))
    yield f"{where}: {len(agree)} of the paper's {len(pairs)} orders hold here, {clear} of them beyond the noise."
    against = [pair for pair in pairs if pair not in agree]
    clearly = [pair for pair in against if _is_significant(*pair)]
    named = clearly[:MAX_NAMED] or against[:2]
    for better, worse in named:
        in_paper = f"{better.row} ({better.paper:g}) is ahead of {worse.row} ({worse.paper:g})"
        yield f"{where}: in the paper {in_paper}; here {_describe_pair(better, worse)}."
    left = len(against) - len(named)
    if left:
        beyond = max(0, len(clearly) - len(named))
        yield f"{where}: and {left} more orders do not hold, {beyond} of them beyond the noise."


def _judge_claim(claim: Claim, column: str, numbers: Sequence[Entry]) -> str:
    """Return a sentence that states if a claim holds in `column`. Only a significant difference decides."""
    named = {e.row: e for e in numbers if e.column == column and e.metric.name == claim.metric}
    if not {claim.better, claim.worse} <= named.keys():
        return f"{claim.source}: {claim.better} and {claim.worse} were not both run{_at_column(column)}."
    better = named[claim.better]
    worse = named[claim.worse]
    if not (better.values and worse.values):
        return f"{claim.source}: a run of {claim.better} or {claim.worse} failed{_at_column(column)}."
    verdict = "is not decided"
    if _is_significant(better, worse):
        verdict = "holds" if _mean_advantage(better, worse) > 0 else "DOES NOT HOLD"
    return f"{claim.source}: {verdict} here{_at_column(column)}: {_describe_pair(better, worse)} ({claim.metric})."


def _at_column(column: str) -> str:
    return f" at {column}" if column else ""


def _better_in_paper_first(a: Entry, b: Entry) -> tuple[Entry, Entry]:
    assert a.paper is not None
    assert b.paper is not None
    if (a.paper > b.paper) == (a.metric.better == "more"):
        return a, b
    return b, a


def _mean_advantage(better: Entry, worse: Entry) -> float:
    """Return the difference of the means, positive if `better` has the better mean."""
    # Two infinite means are equal, but their difference would be NaN.
    if better.mean == worse.mean:
        return 0.0
    if better.metric.better == "more":
        return better.mean - worse.mean
    return worse.mean - better.mean


def _is_significant(a: Entry, b: Entry) -> bool:
    return is_significant(_test_pair(a, b))


def _test_pair(a: Entry, b: Entry) -> float | None:
    return paired_p_value(a.by_seed, b.by_seed, ratio=a.metric.own_units)


def _describe_pair(a: Entry, b: Entry) -> str:
    form = a.metric.form
    return f"{a.row} {a.mean:{form}}, {b.row} {b.mean:{form}}, {describe_test(_test_pair(a, b))}"


def describe_test(p: float | None) -> str:
    """Return a p-value in words; None means that no test was possible."""
    if p is None:
        return "no test"
    if is_significant(p):
        return f"p = {p:.2g}"
    return f"p = {p:.2g}, within the noise"
