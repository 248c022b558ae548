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
    texts, _ = growing.read()
    while growing.more:
        texts += growing.read()[0]
    return texts


def append(path: Path, text: str) -> None:
    with path.open("a") as stream:
        stream.write(text)


def test_growing_file_returns_only_whole_lines(path: Path) -> None:
    path.write_text("one\ntw")
    growing = GrowingLines(path)
    assert growing.read() == (["one"], False)
    assert growing.read() == ([], False)
    append(path, "o\nthree\nfo")
    assert growing.read() == (["two", "three"], False)
    assert (growing.offset, growing.number, growing.size) == (14, 3, 16)


@pytest.mark.parametrize("chunk", [1, 3, 7, 64])
def test_reading_in_chunks_returns_all_lines(path: Path, monkeypatch: pytest.MonkeyPatch, chunk: int) -> None:
    monkeypatch.setattr(lines, "CHUNK_BYTES", chunk)
    wanted = ["a", "", "long" * 9, "é" * 5, "{}"]
    path.write_text("\n".join(wanted) + "\nrest")
    assert all_of(GrowingLines(path)) == wanted


def test_file_that_was_cut_back_and_grew_is_read_again(path: Path) -> None:
    """A resumed run keeps the first lines of its log, and its log may become longer than before."""
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


def test_shorter_or_replaced_file_is_read_again(path: Path) -> None:
    path.write_text("a\nb\n")
    growing = GrowingLines(path)
    growing.read()
    path.write_text("a\n")
    assert growing.read() == (["a"], True)
    # The old file stays, so that the new file cannot get its inode number.
    path.rename(path.with_name("kept"))
    path.write_text("a\n")
    assert growing.read() == (["a"], True)


def test_line_that_is_too_long_is_refused(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lines, "CHUNK_BYTES", 10)
    monkeypatch.setattr(lines, "MAX_LINE_BYTES", 30)
    path.write_text("x" * 100)
    with refuses(str(path), "line 1", "30 bytes"):
        GrowingLines(path).read()


def test_path_that_is_not_a_file_is_refused(path: Path) -> None:
    with pytest.raises(OSError, match="log"):
        GrowingLines(path).read()
