"""Claims of five papers, and the comparisons in our studies that test each claim."""

import math
import tomllib
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cache
from itertools import product
from pathlib import Path
from typing import cast

from benchmarks.studies.metrics import Metric
from benchmarks.studies.recipes import RECIPES
from benchmarks.studies.recipes.scale import Scale, Size
from benchmarks.studies.results import Result, mean_accuracies
from benchmarks.studies.setting import chance_level
from benchmarks.studies.verdict import (
    CANNOT_TELL,
    CANNOT_TELL_TOO_FEW,
    NOT_RUN,
    ONLY,
    OTHER_WAY,
    REPRODUCED,
    TOO_FEW_SEEDS,
    Advantage,
    adjust_holm,
    decide_verdict,
    exclude_weak,
    measure_advantage,
    never_reached,
    p_of_claim,
)
from benchmarks.studies.weak import NOT_REACHED, find_weak

CLAIMS = Path(__file__).with_name("claims.toml")
# A page lists at most MAX_LISTED comparisons of one claim.
MAX_LISTED = 3
EVERYWHERE = "*"


@dataclass(frozen=True)
class PaperClaim:
    """A claim of a paper, and the cells of a study's table that test it.

    Attributes:
        paper: The paper's name.
        says: The claim in words.
        place: The place in the paper, such as "Table 4".
        figures: The paper's numbers in words.
        study: The study that tests the claim.
        metric: The metric that is compared.
        pairs: Pairs of rows. According to the paper, the first row of a pair is better than the second. `row @ column`
            names one cell instead of a row.
        columns: The columns in which rows are compared (default: all columns of the table).
        why: An explanation, if the claim does not hold in our study.
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


def load_claims() -> list[PaperClaim]:
    """Read the claims from their TOML file, in the order of the file."""
    claims = []
    for fields in tomllib.loads(CLAIMS.read_text())["claim"]:
        pairs = tuple((better, worse) for better, worse in fields.pop("pairs"))
        columns = tuple(fields.get("columns", ()))
        claims.append(PaperClaim(**fields | {"pairs": pairs, "columns": columns}))
    return claims


def compare_results(claim: PaperClaim, results: Sequence[Result]) -> list[Advantage]:
    """Return the comparisons that test a claim. A comparison is omitted if one of its numbers is not in the results."""
    metric = study_metrics(claim.study)[claim.metric]
    comparisons = []
    for result in results:
        weak = _find_weak(result)
        for (better, worse), column in product(claim.pairs, _columns(claim, result)):
            if ("@" in better + worse) != (column == EVERYWHERE):
                continue
            places = [(*_split_cell_name(name, column), claim.metric) for name in (better, worse)]
            lines = [result.lines.get(place) for place in places]
            if lines[0] is None or lines[1] is None:
                continue
            where = ", ".join(name for name in (result.size, column) if name and name != EVERYWHERE)
            less = metric.better == "less"
            gained = measure_advantage(where, (better, worse), lines[0], lines[1], less=less, ratio=metric.own_units)
            if gained.n == 1 and not metric.fixed:
                gained = replace(gained, low=-math.inf, high=math.inf, p=math.nan)
            percent = "%" in metric.name
            if gained.is_coarse(percent=percent):
                gained = replace(gained, coarse=True, enough_seeds=gained.seeds_to_decide(percent=percent))
            if not gained.ratio:
                # No difference can exceed the range of the metric.
                largest = metric.within[1] - metric.within[0]
                gained = replace(gained, low=max(gained.low, -largest), high=min(gained.high, largest))
            reasons = {weak.get(place, "") for place in places}
            if len(reasons) == 1:
                gained = replace(gained, weak=reasons.pop())
            if never_reached(lines[0]) and never_reached(lines[1]):
                gained = replace(gained, weak=NOT_REACHED)
            comparisons.append(gained)
    return comparisons


@cache
def _chance_level(study: str, size: str) -> float:
    return chance_level(RECIPES[study](Scale(cast(Size, size), Path("data"))))


def _find_weak(result: Result) -> dict[tuple[str, str, str], str]:
    """Return the cells with weak numbers: accuracies near chance or near 100 %, which can hardly differ.

    The value of a cell is the reason, such as `saturated`.
    """
    means = mean_accuracies(result)
    if not means:
        return {}
    return find_weak(means, _chance_level(result.study, result.size))


def _columns(claim: PaperClaim, result: Result) -> list[str]:
    """Return the columns in which a claim compares rows.

    The last name, EVERYWHERE, stands for no column but for pairs of single cells, such as `row @ column`.
    """
    columns = list(dict.fromkeys(column for _, column, _ in result.lines))
    if claim.columns:
        columns = [column for column in columns if column in claim.columns]
    return [*columns, EVERYWHERE]


def _split_cell_name(name: str, column: str) -> tuple[str, str]:
    row, _, own_column = name.partition(" @ ")
    return row, own_column or column


def study_metrics(study: str) -> dict[str, Metric]:
    """Return the metrics of a study by name. They are the same at every size of the study."""
    return {metric.name: metric for metric in RECIPES[study](Scale("quick", Path("data"))).metrics}


def adjust_by_paper(judged: Sequence[tuple[PaperClaim, Sequence[Advantage]]]) -> list[float | None]:
    """Return each claim's p-value after Holm's correction for the number of claims of the same paper."""
    adjusted: list[float | None] = [None] * len(judged)
    for paper in dict.fromkeys(claim.paper for claim, _ in judged):
        own = [number for number, (claim, _) in enumerate(judged) if claim.paper == paper]
        for number, p in zip(own, adjust_holm([p_of_claim(judged[n][1]) for n in own]), strict=True):
            adjusted[number] = p
    return adjusted


def format_row(
    claim: PaperClaim, comparisons: Sequence[Advantage], results: Sequence[Result], p: float | None
) -> list[str]:
    """Return the row of a claim in the table of claims.

    Args:
        claim: The claim.
        comparisons: The comparisons for the claim.
        results: The results of the claim's study.
        p: The corrected p-value of the claim.
    """
    commands = [result.command for result in results] or [f"python -m benchmarks run {claim.study} --quick"]
    settings = (": ".join(filter(None, (result.size, result.setting))) for result in results)
    return [
        f"**{claim.paper}**: {claim.says}",
        f"{claim.place}: {claim.figures}",
        "; ".join(settings) or "–",
        f"{claim.metric}: {describe_comparisons(comparisons)}" if comparisons else "–",
        describe_verdict(claim, comparisons),
        "–" if p is None else f"{p:.2g}",
        ", ".join(f"`{command}`" for command in commands),
    ]


def describe_comparisons(comparisons: Sequence[Advantage]) -> str:
    """Return a text that describes each comparison.

    If there are more than MAX_LISTED comparisons, the text counts those that support the claim, and describes only the
    weakest comparison.
    """
    if len(comparisons) <= MAX_LISTED:
        return "; ".join(f"{comparison.where}: {comparison.text}" for comparison in comparisons)
    holding = sum(comparison.holds for comparison in comparisons)
    against = sum(comparison.reversed for comparison in comparisons)
    worst = min(comparisons, key=lower_margin)
    return (
        f"{holding} of {len(comparisons)} comparisons hold beyond the noise, {against} are the other way round; the "
        f"weakest, {worst.where}: {worst.text}"
    )


def lower_margin(comparison: Advantage) -> float:
    """Return the low end of the advantage's interval minus the value that means equality.

    The result is -inf if the advantage is unknown.
    """
    if math.isnan(comparison.mean):
        return -math.inf
    return comparison.low - comparison.equality


def describe_places(comparisons: Sequence[Advantage]) -> str:
    """Return a text that names the first MAX_LISTED comparisons that hold, and counts the other ones that hold."""
    places = [f"{one.where}, {one.names[0]} over {one.names[1]}" for one in comparisons if one.holds]
    more = f" and {len(places) - MAX_LISTED} more" if len(places) > MAX_LISTED else ""
    return f"{'; '.join(places[:MAX_LISTED])}{more}"


def describe_verdict(claim: PaperClaim, comparisons: Sequence[Advantage]) -> str:
    """Return the text of a verdict. It lists the comparisons that hold. If none holds, it gives the reason."""
    name = decide_verdict(comparisons)
    strong = exclude_weak(comparisons)
    text = name
    if name == ONLY:
        text = f"{ONLY}: {describe_places(comparisons)}"
    against = sum(comparison.reversed for comparison in strong)
    if name == OTHER_WAY and against < len(comparisons):
        text = f"{OTHER_WAY} in {against} of {len(comparisons)}"
    undecided = [one.weak for one in comparisons if one not in strong]
    undecided += [TOO_FEW_SEEDS for one in strong if one.coarse]
    if undecided and not name.startswith(CANNOT_TELL):
        reasons = " or ".join(sorted(set(undecided)))
        text += f"; {len(undecided)} of {len(comparisons)} comparisons cannot tell ({reasons})"
    return text + describe_reason(claim, name, comparisons)


def describe_reason(claim: PaperClaim, verdict: str, comparisons: Sequence[Advantage]) -> str:
    """Return the end of a verdict's text: the number of seeds that would decide it, and the reason in the claim."""
    text = ""
    if verdict == CANNOT_TELL_TOO_FEW:
        text += describe_limit(exclude_weak(comparisons))
    if claim.why and verdict not in (REPRODUCED, NOT_RUN):
        text += f". {claim.why}"
    return text


def describe_limit(comparisons: Sequence[Advantage]) -> str:
    """Return a text with the number of seeds that would decide the comparison that needs the fewest seeds.

    The text begins with a full stop. It is empty if all these numbers are unknown.
    """
    known = [(one.enough_seeds, one) for one in comparisons if one.enough_seeds is not None]
    if not known:
        return ""
    seeds, easiest = min(known, key=lambda pair: pair[0])
    names = f"{easiest.names[0]} over {easiest.names[1]}"
    return f". With the present variance, about {seeds} seeds would decide a comparison: {easiest.where}, {names}"
