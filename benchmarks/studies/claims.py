"""The page docs/research/claims.md: every claim of the five papers and the results of the studies that test it."""

import math
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from itertools import product
from pathlib import Path
from typing import cast

import pandas as pd

from benchmarks.studies import paper004
from benchmarks.studies.forest import draw_forest
from benchmarks.studies.metrics import Metric
from benchmarks.studies.recipes import RECIPES
from benchmarks.studies.recipes.scale import Scale, Size
from benchmarks.studies.results import RESULTS, Result, read_results, rows_by_column
from benchmarks.studies.setting import chance_level
from benchmarks.studies.tables import markdown_table
from benchmarks.studies.verdict import (
    NOT_RUN,
    ONLY,
    OTHER_WAY,
    REPRODUCED,
    VERDICTS,
    Advantage,
    adjust_holm,
    decide_verdict,
    measure_advantage,
    p_of_claim,
)
from benchmarks.studies.weak import ACCURACIES, find_weak
from fedraa.cli.console import print_line
from fedraa.errors import InputError
from fedraa.report.statistics import LEVEL, is_significant
from fedraa.rundir.atomic_files import write_text

CLAIMS = Path(__file__).with_name("claims.toml")
START, END = (Path(__file__).with_name(f"claims_{part}.md") for part in ("start", "end"))
DOCS = Path(__file__).parents[2] / "docs"
# The maximum number of comparisons that are listed one by one.
MAX_LISTED = 3
EVERYWHERE = "*"


@dataclass(frozen=True)
class PaperClaim:
    """A claim of a paper, and the numbers of a study that decide it.

    `pairs` are pairs of rows of the study's table. The first row is the better one according to the paper. The rows are
    compared in all `columns`, or in all columns of the table if none are named. `row @ column` names one cell of the
    table. `why` is the reason if the claim does not hold here.
    """

    paper: str
    says: str
    place: str
    figures: str
    study: str
    metric: str
    pairs: tuple[tuple[str, str], ...]
    columns: tuple[str, ...] = ()
    why: str = ""


def load_claims(path: Path = CLAIMS) -> list[PaperClaim]:
    """Return the claims of a file, paper by paper."""
    claims = []
    for fields in tomllib.loads(path.read_text())["claim"]:
        pairs = tuple((better, worse) for better, worse in fields.pop("pairs"))
        columns = tuple(fields.get("columns", ()))
        claims.append(PaperClaim(**fields | {"pairs": pairs, "columns": columns}))
    return claims


def compare_results(claim: PaperClaim, results: Sequence[Result]) -> list[Advantage]:
    """Return all comparisons of the claim for which the results have both numbers."""
    metric = study_metrics(claim.study)[claim.metric]
    comparisons = []
    for result in results:
        weak = _find_weak(result)
        for (better, worse), column in product(claim.pairs, _columns(claim, result)):
            if ("@" in better + worse) != (column == EVERYWHERE):
                continue
            places = [(*_parse_place(name, column), claim.metric) for name in (better, worse)]
            lines = [result.lines.get(place) for place in places]
            if lines[0] is None or lines[1] is None:
                continue
            where = ", ".join(name for name in (result.size, column) if name and name != EVERYWHERE)
            less = metric.better == "less"
            gained = measure_advantage(where, (better, worse), lines[0], lines[1], less=less, ratio=metric.own_units)
            if not gained.ratio:
                gained = _clip_interval(gained, metric.within[1] - metric.within[0])
            reasons = {weak.get(place, "") for place in places}
            if len(reasons) == 1:
                gained = replace(gained, weak=reasons.pop())
            comparisons.append(gained)
    return comparisons


@cache
def _chance_level(study: str, size: str) -> float:
    return chance_level(RECIPES[study](Scale(cast(Size, size), Path("data"))))


def _find_weak(result: Result) -> dict[tuple[str, str, str], str]:
    """Return the numbers of a result that are saturated or at chance, with the reason."""
    means = rows_by_column(result, ACCURACIES)
    if not means:
        return {}
    return find_weak(means, _chance_level(result.study, result.size))


def _columns(claim: PaperClaim, result: Result) -> list[str]:
    """Return the columns in which all pairs are compared, and EVERYWHERE for the pairs that name a column."""
    columns = list(dict.fromkeys(column for _, column, _ in result.lines))
    if claim.columns:
        columns = [column for column in columns if column in claim.columns]
    return [*columns, EVERYWHERE]


def _clip_interval(gained: Advantage, largest: float) -> Advantage:
    """Clip the interval to `largest`, the maximum difference of two values of the metric."""
    return replace(gained, low=max(gained.low, -largest), high=min(gained.high, largest))


def _parse_place(name: str, column: str) -> tuple[str, str]:
    """Return the row and the column that `row` or `row @ column` names."""
    row, _, own_column = name.partition(" @ ")
    return row, own_column or column


def study_metrics(study: str) -> dict[str, Metric]:
    """Return the metrics of a study by name. They are the same at every size."""
    return {metric.name: metric for metric in RECIPES[study](Scale("quick", Path("data"))).metrics}


def format_page(claims: Sequence[PaperClaim], results: Mapping[str, Sequence[Result]], mnist: pd.DataFrame) -> str:
    """Return the page docs/research/claims.md: counts of verdicts, all claims, and Fed-RAA's Table 2.

    Args:
        claims: The claims.
        results: The results by study.
        mnist: The table of Fed-RAA's Table 2.
    """
    judged = [(claim, compare_results(claim, results.get(claim.study, ()))) for claim in claims]
    verdicts = [decide_verdict(comparisons) for _, comparisons in judged]
    counts = [f"{verdicts.count(name)} {name}" for name in VERDICTS if name in verdicts]
    adjusted = _adjust_by_paper(judged)
    kept = sum(is_significant(p) for p in adjusted)
    head = [
        "paper and claim",
        "the paper's figure",
        "our setting",
        "our figure, 95 % interval",
        "verdict",
        "p, Holm",
        "decided by",
    ]
    rows = [
        _format_row(claim, comparisons, results.get(claim.study, ()), p)
        for (claim, comparisons), p in zip(judged, adjusted, strict=True)
    ]
    plots = "\n".join(_link_plot(paper) for paper in dict.fromkeys(claim.paper for claim in claims))
    last = markdown_table(list(mnist.columns), ([str(cell) for cell in line] for line in mnist.to_numpy()))
    count = f"Of {len(claims)} claims: {', '.join(counts)}. After Holm's correction, {kept} have p < {LEVEL:g}.\n"
    table = markdown_table(head, rows)
    return "\n".join([START.read_text(), count, table, f"\n## Plots\n\n{plots}", END.read_text(), last, ""])


def _plot_name(paper: str) -> str:
    return f"claims-{paper.lower().replace(' ', '-')}.svg"


def _link_plot(paper: str) -> str:
    return f"![The claims of {paper}: our advantages with 95 % intervals, and the paper's]({_plot_name(paper)})\n"


def draw_plots(claims: Sequence[PaperClaim], results: Mapping[str, Sequence[Result]], folder: Path) -> None:
    """Draw the weakest comparison of each claim that was tested, with a plot per paper.

    Args:
        claims: The claims.
        results: The results by study.
        folder: The folder of the SVG files.
    """
    rows: dict[str, list[tuple[str, Advantage]]] = {}
    for claim in claims:
        comparisons = compare_results(claim, results.get(claim.study, ()))
        deciding = [comparison for comparison in comparisons if comparison.tells] or comparisons
        if deciding:
            rows.setdefault(claim.paper, []).append((claim.says, min(deciding, key=_lower_margin)))
    for paper, members in rows.items():
        draw_forest(paper, members, folder / _plot_name(paper))


def _adjust_by_paper(judged: Sequence[tuple[PaperClaim, Sequence[Advantage]]]) -> list[float | None]:
    """Return the p-value of each claim, adjusted for the number of claims of its paper."""
    adjusted: list[float | None] = [None] * len(judged)
    for paper in dict.fromkeys(claim.paper for claim, _ in judged):
        own = [number for number, (claim, _) in enumerate(judged) if claim.paper == paper]
        for number, p in zip(own, adjust_holm([p_of_claim(judged[n][1]) for n in own]), strict=True):
            adjusted[number] = p
    return adjusted


def _format_row(
    claim: PaperClaim, comparisons: Sequence[Advantage], results: Sequence[Result], p: float | None
) -> list[str]:
    """Return a claim's row of the table.

    Args:
        claim: The claim.
        comparisons: Its comparisons.
        results: The results of its study.
        p: The p-value of the claim, adjusted for the number of claims.
    """
    commands = [result.command for result in results] or [f"python -m benchmarks run {claim.study} --quick"]
    settings = (": ".join(filter(None, (result.size, result.setting))) for result in results)
    return [
        f"**{claim.paper}**: {claim.says}",
        f"{claim.place}: {claim.figures}",
        "; ".join(settings) or "–",
        describe_comparisons(comparisons) or "–",
        describe_verdict(claim, comparisons),
        "–" if p is None else f"{p:.2g}",
        ", ".join(f"`{command}`" for command in commands),
    ]


def describe_comparisons(comparisons: Sequence[Advantage]) -> str:
    """Describe each comparison if there are few, otherwise the number that hold and the worst comparison."""
    if len(comparisons) <= MAX_LISTED:
        return "; ".join(f"{comparison.where}: {comparison.text}" for comparison in comparisons)
    holding = sum(comparison.holds for comparison in comparisons)
    against = sum(comparison.reversed for comparison in comparisons)
    worst = min(comparisons, key=_lower_margin)
    return (
        f"{holding} of {len(comparisons)} comparisons hold beyond the noise, {against} are the other way round; the "
        f"weakest, {worst.where}: {worst.text}"
    )


def _lower_margin(comparison: Advantage) -> float:
    """Return the interval's lower end minus the value of no advantage; minus infinity if the advantage is unknown."""
    if math.isnan(comparison.mean):
        return -math.inf
    return comparison.low - comparison.least


def describe_verdict(claim: PaperClaim, comparisons: Sequence[Advantage]) -> str:
    """Return the verdict on a claim, the comparisons that hold if only some do, and the reason if the claim fails."""
    name = decide_verdict(comparisons)
    telling = [comparison for comparison in comparisons if comparison.tells]
    text = name
    if name == ONLY:
        held = [comparison for comparison in comparisons if comparison.holds]
        places = [f"{one.where}, {one.names[0]} over {one.names[1]}" for one in held]
        more = f" and {len(places) - MAX_LISTED} more" if len(places) > MAX_LISTED else ""
        text = f"{ONLY}: {'; '.join(places[:MAX_LISTED])}{more}"
    against = sum(comparison.reversed for comparison in telling)
    if name == OTHER_WAY and against < len(telling):
        text = f"{OTHER_WAY} in {against} of {len(telling)}, the others within the noise"
    if telling and len(telling) < len(comparisons):
        reasons = " or ".join(sorted({comparison.weak for comparison in comparisons if not comparison.tells}))
        text += f"; {len(comparisons) - len(telling)} of {len(comparisons)} comparisons cannot tell ({reasons})"
    if claim.why and name not in (REPRODUCED, NOT_RUN):
        text += f". {claim.why}"
    return text


def write_claims(out: Path = DOCS / "research" / "claims.md", results: Path = RESULTS) -> None:
    """Judge every claim of the papers by the results of the studies, and write a page of the documentation.

    Args:
        out: The page.
        results: The folder with the tables of the studies.
    """
    mnist = results / paper004.RESULTS.name
    if not mnist.is_file():
        raise InputError(
            "results", f"it has no {mnist.name}", got=results, expected="the folder of the studies' tables"
        )
    if not out.parent.is_dir():
        raise InputError("out", got=out, expected="a file in an existing folder")
    claims = load_claims()
    by_study = read_results(results)
    write_text(out, format_page(claims, by_study, pd.read_csv(mnist)))
    draw_plots(claims, by_study, out.parent)
    print_line(f"written to {out}")
