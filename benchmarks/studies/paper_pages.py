"""The pages of docs/papers, one per paper, and their overview docs/research/claims.md."""

import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import pandas as pd

from benchmarks.studies import paper004
from benchmarks.studies.bibliography import read_papers
from benchmarks.studies.claims import (
    CLAIMS,
    PaperClaim,
    adjust_by_paper,
    compare_results,
    describe_places,
    describe_reason,
    format_row,
    load_claims,
    lower_margin,
)
from benchmarks.studies.forest import draw_forest
from benchmarks.studies.results import RESULTS, Result, read_results
from benchmarks.studies.tables import markdown_table
from benchmarks.studies.verdict import (
    ONLY,
    VERDICTS,
    Advantage,
    decide_verdict,
    exclude_weak,
)
from fedraa.cli.console import print_line
from fedraa.errors import InputError
from fedraa.report.statistics import LEVEL, is_significant
from fedraa.rundir.atomic_files import write_text

DOCS = Path(__file__).parents[2] / "docs"
START = Path(__file__).with_name("claims_start.md")
TABLE_2 = Path(__file__).with_name("table_2.md")
HEAD = (
    "paper and claim",
    "the paper's numbers",
    "our setting",
    "our numbers, 95 % interval",
    "verdict",
    "p, Holm",
    "decided by",
)


@dataclass(frozen=True)
class PaperPage:
    """A paper with claims that our studies test.

    Attributes:
        name: The paper's name in claims.toml.
        key: The key of its entry in papers.bib.
        proposes: Sentences that describe the paper's method.
        study: The study that the page's command repeats, in the size `quick`.
    """

    name: str
    key: str
    proposes: str
    study: str

    @property
    def file_name(self) -> str:
        """The file name of the page and its plot, without a suffix."""
        return self.name.lower().replace(" ", "-")


@dataclass(frozen=True)
class Judged:
    """A claim, its comparisons, its verdict, and its p-value after Holm's correction."""

    claim: PaperClaim
    comparisons: Sequence[Advantage]
    verdict: str
    p: float | None


def load_papers() -> list[PaperPage]:
    """Read the papers from the TOML file of the claims."""
    return [PaperPage(**fields) for fields in tomllib.loads(CLAIMS.read_text())["paper"]]


def judge_claims(claims: Sequence[PaperClaim], results: Mapping[str, Sequence[Result]]) -> list[Judged]:
    """Return all claims with their verdicts. `results` has the results of the studies, by study."""
    compared = [(claim, compare_results(claim, results.get(claim.study, ()))) for claim in claims]
    adjusted = adjust_by_paper(compared)
    return [
        Judged(claim, comparisons, decide_verdict(comparisons), p)
        for (claim, comparisons), p in zip(compared, adjusted, strict=True)
    ]


def count_verdicts(judged: Sequence[Judged]) -> str:
    """Return a sentence with the number of claims of each verdict."""
    verdicts = [one.verdict for one in judged]
    counts = [f"{verdicts.count(name)} {name}" for name in VERDICTS if name in verdicts]
    kept = sum(is_significant(one.p) for one in judged)
    significant = f"{kept} {'has' if kept == 1 else 'have'} p < {LEVEL:g}"
    return f"Of {len(judged)} claims: {', '.join(counts)}. After Holm's correction, {significant}."


def format_paper(
    paper: PaperPage, judged: Sequence[Judged], results: Mapping[str, Sequence[Result]], extra: str
) -> str:
    """Return the page of a paper in Markdown.

    Args:
        paper: The paper.
        judged: The paper's claims.
        results: The results by study.
        extra: A section before the last section; empty for none.
    """
    entry = read_papers()[paper.key]
    parts = [
        f"# {paper.name}",
        f"You will find the claims of {entry.link}, which of them hold in fedraa and in which settings, and a command "
        "that repeats a result.",
        paper.proposes,
        _describe_code(paper),
        "## What holds",
        f"{count_verdicts(judged)} [Claims of the papers](../research/claims.md) explains the verdicts, and the sizes "
        "quick, standard and paper.",
        _list_by_verdict(judged),
        f"![The claims of {paper.name}: our advantages with 95 % intervals, and the paper's]({paper.file_name}.svg)",
        "Several comparisons may test a claim. The plot shows the one that supports it least. Values to the right of "
        "the line favour the claim.",
        "## Repeat a result",
        _describe_command(paper, judged, results),
        "## Every claim",
        markdown_table(
            list(HEAD),
            [format_row(one.claim, one.comparisons, results.get(one.claim.study, ()), one.p) for one in judged],
        ),
        extra,
        f"## BibTeX\n\n```bibtex\n{entry.bibtex}\n```",
    ]
    return "\n\n".join(part for part in parts if part) + "\n"


def _describe_code(paper: PaperPage) -> str:
    """Return a line with the files that show the paper's method; empty without a file."""
    name = paper.file_name.replace("-", "_")
    files = {f"fedraa/methods/{name}.py": " (pseudo-code)", f"examples/{name}_from_scratch.py": ""}
    shown = [f"`{file}`{note}" for file, note in files.items() if (DOCS.parent / file).is_file()]
    return f"How it works: {', '.join(shown)}." if shown else ""


def _list_by_verdict(judged: Sequence[Judged]) -> str:
    lines = []
    for verdict in VERDICTS:
        own = [one for one in judged if one.verdict == verdict]
        if not own:
            continue
        lines += [f"**{verdict.capitalize()}**", ""]
        for one in own:
            text = f"- {one.claim.says} ({one.claim.place}: {one.claim.figures})"
            if verdict == ONLY:
                text += f". It holds in: {describe_places(one.comparisons)}"
            lines.append(text + describe_reason(one.claim, verdict, one.comparisons))
        lines.append("")
    return "\n".join(lines).rstrip()


def _describe_command(paper: PaperPage, judged: Sequence[Judged], results: Mapping[str, Sequence[Result]]) -> str:
    """Return the command of the study `paper.study`, the study's run time, and the results of its comparisons."""
    result = next(one for one in results[paper.study] if one.size == "quick")
    lines = [f"```sh\n{result.command}\n```", ""]
    if "--data-dir" in result.command:
        lines += ["DATA is [the folder of the data sets](../research/claims.md#data-of-the-studies).", ""]
    if result.minutes is not None:
        lines += [
            f"These runs took {result.minutes:g} minutes on one core. The command prints a table, and writes it to "
            f"`runs/studies/{paper.study}-quick`. These numbers of the table belong to the claims:",
            "",
        ]
    for one in judged:
        if one.claim.study == paper.study:
            quick = [gained for gained in one.comparisons if gained.where.startswith("quick")]
            found = "; ".join(f"{gained.where}: {gained.text}" for gained in quick)
            lines.append(f"- {one.claim.says} ({one.claim.metric}): {found}")
    lines += [
        "",
        "To compute verdicts from your own runs, see [Your own verdicts](../research/claims.md#your-own-verdicts).",
    ]
    return "\n".join(lines)


def format_contents(papers: Sequence[PaperPage], judged: Sequence[Judged]) -> str:
    """Return the page docs/research/claims.md: the meaning of the verdicts, and a row per paper."""
    kinds = [name for name in VERDICTS if any(one.verdict == name for one in judged)]
    rows = []
    for paper in papers:
        verdicts = [one.verdict for one in judged if one.claim.paper == paper.name]
        counts = [str(verdicts.count(kind)) for kind in kinds]
        rows.append([f"[{paper.name}](../papers/{paper.file_name}.md)", str(len(verdicts)), *counts])
    table = markdown_table(["paper", "claims", *kinds], rows)
    return "\n".join([START.read_text(), f"{count_verdicts(judged)}\n", table, ""])


def draw_plots(papers: Sequence[PaperPage], judged: Sequence[Judged], folder: Path) -> None:
    """Draw a plot per paper with the weakest comparison of each tested claim.

    Args:
        papers: The papers.
        judged: All claims.
        folder: The folder of the SVG files.
    """
    for paper in papers:
        rows = []
        for one in judged:
            if one.claim.paper == paper.name and one.comparisons:
                deciding = exclude_weak(one.comparisons) or one.comparisons
                rows.append((one.claim.says, min(deciding, key=lower_margin)))
        draw_forest(paper.name, rows, folder / f"{paper.file_name}.svg")


def format_pages(results: Mapping[str, Sequence[Result]], mnist: pd.DataFrame) -> dict[str, str]:
    """Return the text of all pages by their paths in the documentation, from the results by study.

    `mnist` is the table that `paper004` writes.
    """
    papers = load_papers()
    judged = judge_claims(load_claims(), results)
    table = markdown_table(list(mnist.columns), ([str(cell) for cell in line] for line in mnist.to_numpy()))
    extras = {"Fed-RAA": f"{TABLE_2.read_text()}\n{table}"}
    pages = {"research/claims.md": format_contents(papers, judged)}
    for paper in papers:
        own = [one for one in judged if one.claim.paper == paper.name]
        pages[f"papers/{paper.file_name}.md"] = format_paper(paper, own, results, extras.get(paper.name, ""))
    return pages


def write_claims(docs: Path = DOCS, results: Path = RESULTS) -> None:
    """Compare every claim of the papers with the results of the studies, and write the pages of the papers.

    Args:
        docs: The folder of the documentation.
        results: The folder with the tables of the studies.
    """
    mnist = results / paper004.RESULTS.name
    if not mnist.is_file():
        raise InputError(
            "results", f"it has no {mnist.name}", got=results, expected="the folder of the studies' tables"
        )
    if not docs.is_dir():
        raise InputError("docs", got=docs, expected="an existing folder")
    by_study = read_results(results)
    for path, text in format_pages(by_study, pd.read_csv(mnist)).items():
        (docs / path).parent.mkdir(exist_ok=True)
        write_text(docs / path, text)
    draw_plots(load_papers(), judge_claims(load_claims(), by_study), docs / "papers")
    print_line(f"written to {docs / 'papers'} and {docs / 'research' / 'claims.md'}")
