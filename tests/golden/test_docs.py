"""Tests of the documentation: its code runs, every method has a card, and the site loads nothing from the network."""

import csv
import inspect
import itertools
import json
import os
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
from claim_rows import claims_of, rows
from command_line import command_line
from compatibility import compatibility_page
from devtools import BROWSER, Chromium
from documented import ROOT, blocks, run, run_blocks
from example_page import EXAMPLES, example_page
from method_cards import family, method_cards
from papers import paper_of, paper_page

import fedraa
from benchmarks.studies.bibliography import BIBTEX, read_papers
from benchmarks.studies.claims import load_claims
from fedraa import Experiment
from fedraa.aggregation.registry import AGGREGATOR
from fedraa.aggregation.robust.rows import RobustAggregator
from fedraa.attacks.attack import ATTACK
from fedraa.cli.main import COMMANDS
from fedraa.composition.registry import list_methods
from fedraa.devices.profiles import PROFILES
from fedraa.server.async_rule import ASYNC_RULE
from fedraa.submodels.policies import SUBMODEL

METHODS = list_methods()

DOCS = ROOT / "docs"
PAGES = sorted(path.relative_to(DOCS).as_posix() for path in DOCS.rglob("*.md"))
# One page of each kind, which tests check on narrow and wide screens.
WIDTH_PAGES = (
    "index",
    "choose",
    "methods",
    "papers",
    "faq",
    "concepts/staleness",
    "guides/data",
    "reference/components",
    "reference/command-line",
    "papers/fed-raa",
    "research/claims",
)
# The commands of these pages run in the fast tests, because newcomers run them first.
FIRST_PAGES = ("guides/compare.md", "guides/components.md", "guides/own-methods.md", "guides/running.md")
NOTEBOOKS = sorted((DOCS / "tutorials").glob("*.ipynb"))


def test_navigation_lists_exactly_the_pages() -> None:
    listed = set(re.findall(r": ([\w/-]+\.md)$", (ROOT / "mkdocs.yml").read_text(), re.MULTILINE))
    notebooks = {path.relative_to(DOCS).with_suffix(".md").as_posix() for path in NOTEBOOKS}
    generated = {"methods.md", "papers.md", "examples.md", "reference/command-line.md", "reference/compatibility.md"}
    assert listed == {*PAGES, *notebooks} | generated


@pytest.mark.parametrize("page", PAGES)
def test_every_command_of_a_page_has_valid_flags(page: str) -> None:
    for language, block in blocks((DOCS / page).read_text()):
        if language == "python":
            compile(block, page, "exec")
        for line in block.strip().split("\n") if language == "sh" else []:
            run(line, only_parse=True)


def test_flags_page_escapes_pipe_characters() -> None:
    text = command_line()
    assert "<code>--units relative&#124;physical</code>" in text
    assert "\\|" not in text
    rows = [line for line in text.split("\n") if line.startswith("| <code>")]
    assert len(rows) > 100
    assert all(line.count("|") == 4 for line in rows)


def test_components_page_documents_arguments_and_results_of_hooks() -> None:
    """The objects are found in the annotations of the methods of every kind of component."""
    page = (DOCS / "reference" / "components.md").read_text()
    documented = {line.rsplit(".", 1)[-1] for line in page.split("\n") if line.startswith("::: ")}
    kinds = [name for name in documented if isinstance(getattr(fedraa, name, None), type)]
    hooks = [hook for kind in kinds for hook in vars(getattr(fedraa, kind)).values() if inspect.isfunction(hook)]
    texts = " ".join(str(note) for hook in hooks for note in hook.__annotations__.values())
    names = "SchedulingContext ClientUpdate AsyncModel ApplyResult ClientDelta RoundTotals StepContext"
    objects = {*names.split(), "RunContext", "RoundContext"}
    assert {name for name in objects if re.search(rf"\b{name}\b", texts)} == objects
    assert objects <= documented


def test_reference_pages_document_every_public_name() -> None:
    pages = [(DOCS / "reference" / name).read_text() for name in ("python.md", "components.md")]
    documented = {
        line.removeprefix("::: ").strip() for page in pages for line in page.split("\n") if line[:4] == "::: "
    }
    last_words = {name.rsplit(".", 1)[-1] for name in documented}
    assert "fedraa.testing.check" in documented
    assert set(fedraa.__all__) - {"testing"} <= last_words


def test_every_method_has_a_card_with_a_valid_command() -> None:
    text = method_cards()
    assert sorted(re.findall(r"^### (.+)$", text, re.MULTILINE)) == sorted(METHODS)
    families = {family(method) for method in METHODS.values() if not method.variant_of}
    assert set(re.findall(r"^## (.+)$", text, re.MULTILINE)) == families
    commands = [block for language, block in blocks(text) if language == "sh"]
    assert sorted(command.split()[3] for command in commands) == sorted(METHODS)
    for kind in ("--updates", "--rounds"):
        run(next(command for command in commands if kind in command), only_parse=True)


def test_bibliography_has_exactly_the_papers_of_methods() -> None:
    without = [name for name, method in METHODS.items() if paper_of(method) is None]
    assert "fed-quilt" in without
    assert len(without) < 5
    used = {paper.key for method in METHODS.values() if (paper := paper_of(method)) is not None}
    assert used == set(read_papers())
    assert len(read_papers()) == BIBTEX.read_text().count("\n@") + 1
    assert all(paper.field("url").startswith("https://") for paper in read_papers().values())


def test_papers_page_has_every_claim_and_every_entry() -> None:
    text = paper_page()
    counts = re.findall(r"^\| \[.*\) \| \[(\d+)\]\(papers/[\w-]+\.md\) \| ([\d |]+) \|$", text, re.MULTILINE)
    assert [int(total) for total, _ in counts] == [sum(map(int, parts.split(" | "))) for _, parts in counts]
    assert sum(int(total) for total, _ in counts) == len(load_claims())
    assert text.count("\n@") == len(read_papers())


def test_compatibility_page_shows_every_row_with_its_digest() -> None:
    text = compatibility_page()
    with (ROOT / "benchmarks" / "results" / "compat.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    for row in rows:
        lines = [line for line in text.split("\n") if line.startswith(f"| {row['combination']} |")]
        assert len(lines) == 2
        assert f"| {row['ray']} |" in lines[0]
        assert lines[1].count("| yes |") + lines[1].count("| no |") > 0
        assert row["digest"][:16] in lines[1]
    for _, block in blocks(text):
        for line in block.strip().split("\n"):
            run(line)


def test_faq_links_each_question_to_a_thread() -> None:
    sections = re.split(r"^### ", (DOCS / "faq.md").read_text(), flags=re.MULTILINE)[1:]
    assert len(sections) >= 25
    assert [section.split("\n")[0] for section in sections if "](https://github.com/" not in section] == []


@pytest.mark.parametrize("page", PAGES)
def test_lines_that_begin_with_a_number_sign_are_headings(page: str) -> None:
    text = re.sub(r"^```.*?^```", "", (DOCS / page).read_text(), flags=re.MULTILINE | re.DOTALL)
    assert re.findall(r"^#+[^# \n].*", text, re.MULTILINE) == []


@pytest.mark.parametrize("page", PAGES)
def test_every_row_belongs_to_a_table_with_a_heading(page: str) -> None:
    text = re.sub(r"^```.*?^```", "", (DOCS / page).read_text(), flags=re.MULTILINE | re.DOTALL)
    tables = re.findall(r"(?:^\|.*\n)+", text, re.MULTILINE)
    assert [table for table in tables if not re.match(r".*\n[|: -]+\n", table)] == []


@pytest.mark.parametrize("page", ["README.md", *(f"docs/{page}" for page in PAGES)])
def test_pictures_and_files_that_a_page_names_exist(page: str) -> None:
    text = (ROOT / page).read_text()
    pictures = [link.partition("#")[0] for link in re.findall(r"!\[[^]]*\]\(([^)]+)\)", text)]
    folder = (ROOT / page).parent
    # The build copies compare.png from the results.
    missing = [link for link in pictures if not (folder / link).is_file() and not link.endswith("assets/compare.png")]
    assert missing == []
    named = re.findall(r"`((?:actors|benchmarks|deploy|docs|examples|fedraa|schedulers|tests)/[\w./-]*\w\.\w+)`", text)
    assert [name for name in named if not (ROOT / name).exists()] == []


def test_results_take_at_most_7_mb_and_have_only_the_picture_of_a_page() -> None:
    results = list((ROOT / "benchmarks" / "results").iterdir())
    # The page of comparisons shows this picture.
    assert [path.name for path in results if path.suffix == ".png"] == ["compare.png"]
    assert sum(path.stat().st_size for path in results) <= 7_000_000


@pytest.mark.parametrize("page", PAGES)
def test_table_of_a_study_on_a_page_equals_its_stored_result(page: str) -> None:
    for study, rest in re.findall(r"^python -m benchmarks run (\w+) --standard(.*?)(?=^#|\Z)", text_of(page), STUDIES):
        result = (ROOT / "benchmarks" / "results" / f"{study}-standard.md").read_text()
        assert table_numbers(rest) == table_numbers(result)
        # The caption of the result names the test, and the page must not name another.
        (test,) = set(re.findall(r"Welch's|paired", result))
        assert set(re.findall(r"Welch's|paired", rest)) <= {test}


NUMBERS = {7: "seven", 9: "nine", 16: "sixteen", 20: "twenty"}


def test_frameworks_page_counts_the_registered_components() -> None:
    text = text_of("coming-from/frameworks.md")
    robust = [
        make for make in AGGREGATOR.names().values() if inspect.isclass(make) and issubclass(make, RobustAggregator)
    ]
    personal = [one for one in METHODS.values() if one.local.personal_layers or one.local.algorithm.has_personal_model]
    for number, of in (
        (len(SUBMODEL.names()) - 1, "kinds, for nearly any"),
        (len(ASYNC_RULE.names()), "update rules"),
        (len(personal), "methods, such as Ditto"),
        (len(robust), "rules, also for submodels"),
        (len(ATTACK.names()), ", one of them a backdoor"),
        (len(PROFILES), "profiles of real devices"),
    ):
        assert f"{NUMBERS[number]} {of}".replace(" ,", ",") in text


STUDIES = re.MULTILINE | re.DOTALL


def text_of(page: str) -> str:
    return (DOCS / page).read_text()


def table_numbers(text: str) -> list[list[str]]:
    """Return the cells of the first table of a text, without its heading and the names of its rows."""
    table = re.search(r"(?:^\|.*\n)+", text, re.MULTILINE)
    assert table is not None
    return [[cell.strip() for cell in line.split("|")[2:-1]] for line in table[0].splitlines()[2:]]


def test_every_package_that_a_page_installs_is_in_an_extra() -> None:
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    paths = [*DOCS.rglob("*.md"), *(ROOT / "examples").glob("*.*"), *(ROOT / "fedraa").rglob("*.py")]
    texts = [path.read_text() for path in paths]
    named = set(re.findall("pip install '([^']+)'", "\n".join(texts)))
    assert len(named) >= 3
    assert named <= {*itertools.chain(*extras.values()), *(f"fedraa[{extra}]" for extra in extras)}


def test_card_links_to_claims_in_any_kind_of_table() -> None:
    text = """# Claims

## Table 2, of `Fed-RAA`

| claim | ours | verdict |
|---|---|---|
| [Fed-RAA](https://a.b) reaches 93 % first | **3.7** against FedAsync's 4.2 | reproduced |
| MoFedSAM is ahead | 71 | not |

## Others

| method | figure |
|---|---|
| FedAvg | 9.9 |
| FedAvg, again | 9.8 |
"""
    of_page = rows(text, "papers/a.md")
    claim = "[Fed-RAA reaches 93 % first](papers/a.md#table-2-of-fed-raa): reproduced"
    assert [claims_of(name, of_page) for name in ("fed-raa", "fedasync")] == [[claim], [claim]]
    assert claims_of("mofedsam", of_page) == ["[MoFedSAM is ahead](papers/a.md#table-2-of-fed-raa): not"]
    assert claims_of("fedavg", of_page) == ["[Others](papers/a.md#others)"]
    assert claims_of("fedsam", of_page) == claims_of("fed-raa-sync", of_page) == []


def test_examples_page_has_every_file_in_full() -> None:
    text = example_page()
    sections = re.findall(r"^## (\w+)\.py$", text, re.MULTILINE)
    assert sorted(sections) == sorted(path.stem for path in EXAMPLES.glob("*.py"))
    assert [block for _, block in blocks(text)] == [(EXAMPLES / f"{name}.py").read_text() for name in sections]
    assert {*re.findall(r"\(#(\w+)py\)", text), "character_models"} == set(sections)


def test_flags_page_has_every_flag() -> None:
    text = command_line()
    assert re.findall(r"^## fedraa (\S+)", text, re.MULTILINE) == list(COMMANDS)
    assert [name for name in Experiment.model_fields if f"<code>--{name.replace('_', '-')}" not in text] == []


def test_notebooks_are_stored_without_output() -> None:
    for path in NOTEBOOKS:
        cells = json.loads(path.read_text())["cells"]
        assert all(cell.get("outputs", []) == [] for cell in cells), path.name
        for cell in cells:
            if cell["cell_type"] == "code":
                compile("".join(cell["source"]), path.name, "exec")


@pytest.fixture
def working_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return an empty working directory from which modules can be imported."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    # Another page may have imported its own my_ext.
    monkeypatch.delitem(sys.modules, "my_ext", raising=False)
    # The tests of `fedraa check` need two other processes. Here one is enough.
    monkeypatch.setattr("fedraa.testing.other_process.ORDERS", ("1",))
    return tmp_path


@pytest.mark.slow
@pytest.mark.cluster
@pytest.mark.usefixtures("cluster")
@pytest.mark.parametrize("page", PAGES)
def test_every_block_of_a_page_runs(page: str, working_directory: Path) -> None:
    run_blocks((DOCS / page).read_text(), page, working_directory)


@pytest.mark.cluster
@pytest.mark.usefixtures("cluster")
@pytest.mark.parametrize("page", FIRST_PAGES)
def test_every_block_of_a_first_page_runs_without_ray_unless_it_has_workers(page: str, working_directory: Path) -> None:
    run_blocks((DOCS / page).read_text(), page, working_directory, engine="local")


@pytest.mark.slow
@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_every_notebook_runs(path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    names: dict[str, object] = {"__name__": "notebook"}
    for cell in json.loads(path.read_text())["cells"]:
        if cell["cell_type"] == "code":
            exec(compile("".join(cell["source"]), path.name, "exec"), names)


@pytest.mark.slow
def test_command_of_every_card_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    # Another page may have imported its own my_ext.
    monkeypatch.delitem(sys.modules, "my_ext", raising=False)
    Path("my_ext.py").write_text("from needed_models import adapters as adapted\n")
    for _, command in blocks(method_cards()):
        if " DATA " in command:
            # The tests have no folder of data.
            run(command.strip(), only_parse=True)
        else:
            run(command.strip() + " --quiet --local-steps 2" * ("splitfed" not in command))


def build_site(directory: Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "--site-dir", str(directory)]
    environment = os.environ | {"NO_MKDOCS_2_WARNING": "1", "PYTHONPATH": str(ROOT)}
    return subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True)


@pytest.mark.slow
def test_site_is_built_without_a_warning_and_works_from_disk(tmp_path: Path) -> None:
    pytest.importorskip("mkdocs", reason="the extra docs is not installed")
    done = build_site(tmp_path / "site")
    assert (done.returncode, done.stderr) == (0, "")
    pages = list((tmp_path / "site").rglob("*.html"))
    assert len(pages) > 20
    loads = re.compile(r"""<(?:script|link|img|iframe)[^>]*?(?:src|href)=["']?(https?:)?//[^>]*>""")
    assert [(path.name, found[0]) for path in pages if (found := loads.search(path.read_text()))] == []
    if BROWSER is None:
        pytest.skip("there is no Chromium")
    with Chromium(tmp_path / "profile") as browser:
        for width in (400, 1280, 1920):
            for page in WIDTH_PAGES:
                browser.open((tmp_path / "site" / f"{page}.html").as_uri(), width=width)
                browser.wait("document.readyState === 'complete'")
                blocks_of_code = "[...document.querySelectorAll('.highlight code')]"
                clipped = f"{blocks_of_code}.filter(e => e.scrollWidth > e.clientWidth + 1).map(e => e.textContent)"
                assert browser.value(clipped) == [], (width, page)
                assert not browser.value("document.documentElement.scrollWidth > innerWidth"), (width, page)
        # A wide table on a phone has no head, so that each cell begins with the name of its column.
        browser.open((tmp_path / "site" / "papers" / "fed-raa.html").as_uri(), width=400)
        browser.wait("document.readyState === 'complete'")
        wide = "[...document.querySelectorAll('table')].find(table => table.querySelectorAll('th').length >= 5)"
        names = browser.value(f"[...{wide}.querySelectorAll('th')].map(cell => cell.textContent)")
        shown = f"[...{wide}.querySelector('tbody tr').cells].map(cell => getComputedStyle(cell, '::before').content)"
        assert [text.replace('" ": "', "").strip('": ') for text in browser.value(shown)] == names
        assert browser.value(f"getComputedStyle({wide}.querySelector('thead')).display") == "none"
        browser.open((tmp_path / "site" / "index.html").as_uri())
        browser.wait("document.querySelector('.md-search__input') !== null")
        browser.value("document.querySelector('.md-search__input').focus()")
        type_in = "(e => (e.value = 'staleness', e.dispatchEvent(new Event('keyup'))))"
        browser.value(f"{type_in}(document.querySelector('.md-search__input')) && null")
        browser.wait("document.querySelectorAll('.md-search-result__item').length > 3")
        assert browser.problems == []
