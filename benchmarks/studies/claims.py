"""The page docs/research/claims.md: every claim of the five papers beside the committed results of the studies."""

import math
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import pandas as pd

from benchmarks.studies import paper004
from benchmarks.studies.metrics import Metric
from benchmarks.studies.recipes import RECIPES
from benchmarks.studies.recipes.scale import Scale
from benchmarks.studies.results import RESULTS, Result, read_all
from benchmarks.studies.tables import markdown_table
from benchmarks.studies.verdict import NOT_RUN, ONLY, OTHER_WAY, REPRODUCED, VERDICTS, Advantage, advantage, verdict
from fedraa.cli.display import say
from fedraa.errors import InputError
from fedraa.rundir.atomic_files import write_text

CLAIMS = Path(__file__).with_name("claims.toml")
START, END = (Path(__file__).with_name(f"claims_{part}.md") for part in ("start", "end"))
DOCS = Path(__file__).parents[2] / "docs"
LISTED = 3  # comparisons that are told one by one
EVERYWHERE = "*"


@dataclass(frozen=True)
class PaperClaim:
    """What a paper claims, and which numbers of which study decide it.

    `pairs` are rows of the study's table, the better one first, compared in all `columns` (in all that there are, if
    none are named); `row @ column` names one place. `why` says in words why it does not hold here, where it does not.
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
    """The claims of a file, paper by paper."""
    found = []
    for each in tomllib.loads(path.read_text())["claim"]:
        pairs = tuple((better, worse) for better, worse in each.pop("pairs"))
        found.append(PaperClaim(**each | {"pairs": pairs, "columns": tuple(each.get("columns", ()))}))
    return found


def compared(claim: PaperClaim, results: Sequence[Result]) -> list[Advantage]:
    """All comparisons of the claim that the results have both numbers of."""
    metric = metrics_of(claim.study)[claim.metric]
    found = []
    for result in results:
        columns = list(dict.fromkeys(column for _, column, _ in result.lines))
        for better, worse in claim.pairs:
            for column in columns if "@" not in better + worse else [EVERYWHERE]:
                if claim.columns and column not in (*claim.columns, EVERYWHERE):
                    continue
                places = [_place(name, column) for name in (better, worse)]
                lines = [result.lines.get((*place, claim.metric)) for place in places]
                if lines[0] is None or lines[1] is None:
                    continue
                where = ", ".join(filter(None, (result.size, "" if column == EVERYWHERE else column)))
                names = (better, worse)
                less, ratio = metric.better == "less", metric.own_units
                gained = advantage(where, names, lines[0], lines[1], less=less, ratio=ratio)
                found.append(gained if gained.ratio else _possible(gained, metric.within[1] - metric.within[0]))
    return found


def _possible(gained: Advantage, most: float) -> Advantage:
    """With an interval that ends where differences do: two numbers are no further apart than `most`."""
    return replace(gained, low=max(gained.low, -most), high=min(gained.high, most))


def _place(name: str, column: str) -> tuple[str, str]:
    row, _, own = name.partition(" @ ")
    return (row, own) if own else (row, column)


def metrics_of(study: str) -> dict[str, Metric]:
    """The metrics of a study by name: the same at every size."""
    return {metric.name: metric for metric in RECIPES[study](Scale("quick", Path("data"))).metrics}


def page(claims: Sequence[PaperClaim], results: Mapping[str, Sequence[Result]], mnist: pd.DataFrame) -> str:
    """Return the page docs/research/claims.md: counts of verdicts, all claims, and Fed-RAA's Table 2."""
    judged = [(claim, compared(claim, results.get(claim.study, ()))) for claim in claims]
    verdicts = [verdict(found) for _, found in judged]
    counts = [f"{verdicts.count(name)} {name}" for name in VERDICTS if name in verdicts]
    head = [
        "paper and claim",
        "the paper's figure",
        "our setting",
        "our figure, 95 % interval",
        "verdict",
        "decided by",
    ]
    rows = [_row(claim, found, results.get(claim.study, ())) for claim, found in judged]
    last = markdown_table(list(mnist.columns), ([str(cell) for cell in line] for line in mnist.to_numpy()))
    count = f"Of {len(claims)} claims: {', '.join(counts)}.\n"
    return "\n".join([START.read_text(), count, markdown_table(head, rows), END.read_text(), last, ""])


def _row(claim: PaperClaim, found: Sequence[Advantage], results: Sequence[Result]) -> list[str]:
    commands = [result.command for result in results] or [f"python -m benchmarks run {claim.study} --quick"]
    return [
        f"**{claim.paper}**: {claim.says}",
        f"{claim.place}: {claim.figures}",
        "; ".join(f"{result.size}: {result.setting}" if result.setting else result.size for result in results) or "–",
        told(found) or "–",
        in_words(claim, found),
        ", ".join(f"`{command}`" for command in commands),
    ]


def told(found: Sequence[Advantage]) -> str:
    """The comparisons one by one, or, of many, how many hold and the worst of them."""
    if len(found) <= LISTED:
        return "; ".join(f"{each.where}: {each.text}" for each in found)
    holding, against = (sum(getattr(each, name) for each in found) for name in ("holds", "reversed"))
    worst = min(found, key=_strength)
    return (
        f"{holding} of {len(found)} comparisons hold beyond the noise, {against} are the other way round; the least, "
        f"{worst.where}: {worst.text}"
    )


def _strength(each: Advantage) -> float:
    low = -math.inf if math.isnan(each.mean) else each.low
    return low - each.least


def in_words(claim: PaperClaim, found: Sequence[Advantage]) -> str:
    """The verdict, where it holds if only somewhere, and why not elsewhere."""
    name = verdict(found)
    if name == ONLY:
        where = [f"{each.where}, {each.names[0]} over {each.names[1]}" for each in found if each.holds]
        rest = f" and {len(where) - LISTED} more" if len(where) > LISTED else ""
        name = f"{ONLY}: {'; '.join(where[:LISTED])}{rest}"
    if name == OTHER_WAY and (against := sum(each.reversed for each in found)) < len(found):
        name = f"{OTHER_WAY} in {against} of {len(found)}, the others within the noise"
    why = "" if name in (REPRODUCED, NOT_RUN) or not claim.why else f". {claim.why}"
    return f"{name}{why}"


def write_claims(out: Path = DOCS / "research" / "claims.md", results: Path = RESULTS) -> None:
    """Judge every claim of the papers by the results of the studies, into a page of the documentation.

    Args:
        out: The page.
        results: The folder with the tables of the studies.
    """
    if not (mnist := results / paper004.RESULTS.name).is_file():
        raise InputError(
            "results", f"it has no {mnist.name}", got=results, expected="the folder of the studies' tables"
        )
    if not out.parent.is_dir():
        raise InputError("out", got=out, expected="a file in an existing folder")
    write_text(out, page(load_claims(), read_all(results), pd.read_csv(mnist)))
    say(f"written to {out}")
