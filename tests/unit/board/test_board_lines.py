"""A growing file is read by byte offset: only whole lines, each line once, and again if the file was replaced."""

from pathlib import Path

import pytest
from refusals import refuses

from fedraa.board import lines
from fedraa.board.lines import GrowingLines


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "log"


def all_of(growing: GrowingLines) -> list[str]:
    found, _ = growing.read()
    while growing.more:
        found += growing.read()[0]
    return found


def append(path: Path, text: str) -> None:
    with path.open("a") as stream:
        stream.write(text)


def test_a_line_counts_once_it_is_whole(path: Path) -> None:
    path.write_text("one\ntw")
    growing = GrowingLines(path)
    assert growing.read() == (["one"], False)
    assert growing.read() == ([], False)
    append(path, "o\nthree\nfo")
    assert growing.read() == (["two", "three"], False)
    assert (growing.offset, growing.number, growing.size) == (14, 3, 16)


@pytest.mark.parametrize("chunk", [1, 3, 7, 64])
def test_portions_make_the_whole(path: Path, monkeypatch: pytest.MonkeyPatch, chunk: int) -> None:
    monkeypatch.setattr(lines, "CHUNK", chunk)
    wanted = ["a", "", "long" * 9, "é" * 5, "{}"]
    path.write_text("\n".join(wanted) + "\nrest")
    assert all_of(GrowingLines(path)) == wanted


def test_a_file_that_was_cut_back_and_grew_again_is_read_anew(path: Path) -> None:
    """As a run that is gone on with does it: the first lines are the same, and the file is longer in the end."""
    path.write_text("same\nold\n")
    growing = GrowingLines(path)
    growing.read()
    with path.open("r+") as stream:
        stream.truncate(5)
    append(path, "new\nand more\n")
    assert growing.read() == (["same", "new", "and more"], True)
    append(path, "last\n")
    assert growing.read() == (["last"], False)
    assert growing.number == 4


def test_a_file_that_is_shorter_or_another_one_is_read_anew(path: Path) -> None:
    path.write_text("a\nb\n")
    growing = GrowingLines(path)
    growing.read()
    path.write_text("a\n")
    assert growing.read() == (["a"], True)
    path.rename(path.with_name("kept"))  # or its number may be given to the next
    path.write_text("a\n")
    assert growing.read() == (["a"], True)


def test_what_has_no_lines_is_not_read_for_ever(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lines, "CHUNK", 10)
    monkeypatch.setattr(lines, "LONGEST", 30)
    path.write_text("x" * 100)
    with refuses(str(path), "line 1", "30 bytes"):
        GrowingLines(path).read()


def test_what_is_no_file_is_refused(path: Path) -> None:
    with pytest.raises(OSError, match="log"):
        GrowingLines(path).read()
