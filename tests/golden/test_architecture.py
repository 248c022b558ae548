"""docs/reference/architecture.md names files, classes and functions that exist."""

import re

import pytest

from benchmarks.system.structure import PACKAGES, ROOT

TEXT = (ROOT / "docs/reference/architecture.md").read_text()
FILES = sorted({name for name in re.findall(r"`([\w/]+\.py)`", TEXT) if "/" in name})
CARD = TEXT.partition("## The code of each part of the design")[2].partition("\n## ")[0]
ROWS = [row for row in CARD.splitlines() if row.startswith("| ") and not row.startswith("| part ")]
PHRASES = (
    "fragmented model",
    "Gre-RAA",
    "delay is imposed",
    "pulls",
    "proximal",
    "SAM",
    "pushes",
    "weight by staleness",
)


def test_named_files_exist() -> None:
    assert len(FILES) > 25
    assert [name for name in FILES if not (ROOT / name).is_file()] == []


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.split("|")[1].strip())
def test_every_row_names_classes_and_functions_of_its_files(row: str) -> None:
    files = [ROOT / name for name in re.findall(r"`([\w/]+\.py)`", row)]
    text = "\n".join(path.read_text() for path in files)
    names = re.findall(r"`([A-Za-z_]+(?:\.\w+)?)`", row)
    assert names
    for name in names:
        owner, _, member = name.partition(".")
        assert re.search(rf"^(class|def) {owner}\b", text, re.MULTILINE), name
        assert not member or re.search(rf"^    (def {member}\b|{member}:)", text, re.MULTILINE), name


def test_table_has_every_phrase_of_the_description() -> None:
    assert [phrase for phrase in PHRASES if phrase not in CARD] == []


def test_page_names_every_subpackage() -> None:
    subpackages = {f"fedraa/{path.parent.name}/" for path in (ROOT / "fedraa").glob("*/__init__.py")}
    assert set(PACKAGES) <= {"fedraa", "actors", "schedulers"}
    assert [name for name in sorted(subpackages) if f"`{name}`" not in TEXT] == []


def test_navigation_lists_the_page_once() -> None:
    assert (ROOT / "mkdocs.yml").read_text().count("architecture.md") == 1
