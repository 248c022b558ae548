"""Claims of the papers: their places in studies, and the committed pages, which agree with the committed results."""

import re
from itertools import chain
from pathlib import Path

import pandas as pd
import pytest
from refusals import refuses

from benchmarks.studies import paper004
from benchmarks.studies.claims import PaperClaim, load_claims, study_metrics
from benchmarks.studies.paper_pages import DOCS, format_pages, judge_claims, load_papers, write_claims
from benchmarks.studies.recipes import RECIPES
from benchmarks.studies.recipes.scale import SIZES, Scale
from benchmarks.studies.results import RESULTS, Result, mean_accuracies, read_result, read_results
from benchmarks.studies.setting import chance_level
from benchmarks.studies.verdict import OTHER_WAY
from benchmarks.studies.weak import weak_points

CLAIMS = load_claims()


@pytest.mark.parametrize("claim", CLAIMS, ids=[f"{claim.paper}: {claim.says}" for claim in CLAIMS])
def test_every_claim_names_places_of_its_study(claim: PaperClaim) -> None:
    assert claim.metric in study_metrics(claim.study)
    studies = [RECIPES[claim.study](Scale(size, Path("data"))) for size in SIZES]
    rows = set[str]().union(*(study.rows for study in studies))
    columns = set[str]().union(*(study.columns for study in studies))
    for name in chain.from_iterable(claim.pairs):
        row, _, column = name.partition(" @ ")
        assert row in rows
        assert not column or column in columns
    assert set(claim.columns) <= columns


def test_committed_claim_pages_agree_with_the_results() -> None:
    """`python -m benchmarks claims` writes them."""
    pages = format_pages(read_results(), pd.read_csv(paper004.RESULTS))
    assert {path: (DOCS / path).read_text() for path in pages} == pages
    papers = load_papers()
    assert [paper.name for paper in papers] == list(dict.fromkeys(claim.paper for claim in CLAIMS))
    assert {f"papers/{path.name}" for path in (DOCS / "papers").glob("*.md")} == {*pages} - {"research/claims.md"}
    for paper in papers:
        assert f"({paper.file_name}.svg)" in pages[f"papers/{paper.file_name}.md"]
        drawn = (DOCS / "papers" / f"{paper.file_name}.svg").read_text()
        assert f"{paper.name}: the weakest comparison" in drawn


def test_command_of_each_paper_takes_less_than_ten_minutes_on_one_core() -> None:
    """Ten minutes on one core are five on two."""
    results = read_results()
    for paper in load_papers():
        [quick] = [result for result in results[paper.study] if result.size == "quick"]
        assert quick.minutes is not None
        assert quick.minutes < 10
        assert any(claim.study == paper.study for claim in CLAIMS if claim.paper == paper.name)


@pytest.mark.parametrize("claim", [claim for claim in CLAIMS if claim.why], ids=lambda claim: claim.says)
def test_reason_names_a_study_with_results(claim: PaperClaim) -> None:
    named = re.findall(r"`(\w+)`", claim.why)
    assert named
    assert set(named) <= set(read_results())


def test_reversed_claims_have_a_reason() -> None:
    judged = judge_claims(CLAIMS, read_results())
    assert [one.claim.says for one in judged if one.verdict == OTHER_WAY and not one.claim.why] == []


COMMITTED = [result for result in map(read_result, sorted(RESULTS.glob("*.csv"))) if result]


@pytest.mark.parametrize("result", COMMITTED, ids=lambda result: f"{result.study}-{result.size}")
def test_page_of_each_result_states_its_weak_points_and_the_notes_of_its_recipe(result: Result) -> None:
    study = RECIPES[result.study](Scale(result.size, Path("data")))
    page_text = (RESULTS / f"{study.name}{'' if result.size == 'quick' else f'-{result.size}'}.md").read_text()
    for sentence in weak_points(mean_accuracies(result), chance_level(study)):
        assert sentence in page_text
    for note in study.notes:
        assert f"- {note}\n" in page_text


def test_folder_without_results_is_refused(tmp_path: Path) -> None:
    with refuses("results", "paper004.csv", got=tmp_path):
        write_claims(tmp_path, tmp_path)
    with refuses("docs", got=tmp_path / "nowhere"):
        write_claims(tmp_path / "nowhere")
