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


def test_files_exist() -> None:
    assert len(FILES) > 25
    assert [name for name in FILES if not (ROOT / name).is_file()] == []


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.split("|")[1].strip())
def test_each_phrase_names_a_class_or_function_of_its_file(row: str) -> None:
    files = [ROOT / name for name in re.findall(r"`([\w/]+\.py)`", row)]
    text = "\n".join(path.read_text() for path in files)
    names = re.findall(r"`([A-Za-z_]+(?:\.\w+)?)`", row)
    assert names
    for name in names:
        owner, _, member = name.partition(".")
        assert re.search(rf"^(class|def) {owner}\b", text, re.MULTILINE), name
        assert not member or re.search(rf"^    (def {member}\b|{member}:)", text, re.MULTILINE), name


def test_phrases_of_the_description_are_there() -> None:
    assert [phrase for phrase in PHRASES if phrase not in CARD] == []


def test_every_room_is_named() -> None:
    rooms = {f"fedraa/{path.parent.name}/" for path in (ROOT / "fedraa").glob("*/__init__.py")}
    assert set(PACKAGES) <= {"fedraa", "actors", "schedulers"}
    assert [room for room in sorted(rooms) if f"`{room}`" not in TEXT] == []


def test_the_page_is_in_the_navigation() -> None:
    assert (ROOT / "mkdocs.yml").read_text().count("architecture.md") == 1
