"""Shakespeare's plays for the prediction of the next character. A client is a role (McMahan et al. 2017)."""

import re
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from fedraa.data.natural.folders import TEST_SHARE, find_folder, hold_out_rows
from fedraa.data.natural.leaf import LeafSplit, has_leaf_files, read_leaf
from fedraa.data.natural.tables import find_tables, name_cell, read_tables
from fedraa.data.sources.federated_dataset import FederatedDataset
from fedraa.data.sources.rows import Rows
from fedraa.data.tree import Array
from fedraa.errors import InputError, read_failure
from fedraa.reading.regular_files import read_regular_file

GET = "hf download flwrlabs/shakespeare --repo-type dataset --local-dir shakespeare, or preprocess.sh of LEAF"
CHARACTERS = "\n !\"&'(),-.0123456789:;>?ABCDEFGHIJKLMNOPQRSTUVWXYZ[]abcdefghijklmnopqrstuvwxyz}"
"""The 80 characters of LEAF, in the same order. Any other character becomes a space."""
LENGTH = 80
MIN_CHARACTERS = 2000
"""In plays as plain text, a role with fewer characters is not a client."""
PLAYS = "input.txt"
_SPEECH = re.compile(r"^(?P<role>[^\n:]+):\n(?P<text>.*?)(?=\n\n|\n?\Z)", re.MULTILINE | re.DOTALL)
Codes = npt.NDArray[np.uint8]


@dataclass(frozen=True, eq=False)
class TextWindows(Rows):
    """Windows of 80 characters in a text, with the next character as the target.

    Attributes:
        codes: The text, with each character as its index in `CHARACTERS`, uint8 [characters].
        starts: The position of the first character of each window.
        every_position: True if the targets are the next characters at all positions of a window.
    """

    codes: Codes
    starts: npt.NDArray[np.int64]
    every_position: bool

    def __len__(self) -> int:
        return len(self.starts)

    def read(self, rows: npt.NDArray[np.int64]) -> tuple[Array, Array]:
        windows = self.codes[self.starts[rows][:, None] + np.arange(LENGTH + 1)].astype(np.int64)
        if self.every_position:
            return windows[:, :-1], windows[:, 1:]
        return windows[:, :-1], windows[:, -1]

    def labels(self) -> Array:
        if self.every_position:
            return super().labels()
        return self.codes[self.starts + LENGTH].astype(np.int64)


def read_shakespeare(data_dir: Path | None, *, every_position: bool = False) -> FederatedDataset:
    """Return Shakespeare: windows of 80 characters, int64 [n, 80], and the next character, 0 to 79.

    The folder may have three kinds of files:

    - LEAF: x is a text of 80 characters, and y is the next character. A user is `PLAY_ROLE`.
    - `flwrlabs/shakespeare` of Hugging Face: the same x and y, and the column character_id. A fifth of the windows of
      each role become test windows, which overlap training windows.
    - Plays as plain text in `input.txt`: each speech is a line `ROLE:`, the lines of the speech, and an empty line.
      Roles with at least 2,000 characters are clients. A window starts at every character. The last fifth of a role's
      text is its test text, without overlaps.

    Args:
        data_dir: The folder with the files.
        every_position: True to return the next character at every position, [n, 80], which the objective next-token
            needs. Windows of plain text then do not overlap.
    """
    root = find_folder("shakespeare", data_dir, _has_files, GET)
    if has_leaf_files(root):
        splits = read_leaf(root, _convert_windows)
        rows = [_rows_of_split(split, every_position) for split in splits]
        owners = [split.owners for split in splits]
    elif (root / PLAYS).is_file():
        rows, owners = _read_plays(root / PLAYS, every_position)
    else:
        rows, owners = _read_table(root, every_position)
    return FederatedDataset("shakespeare", rows[0], rows[1], len(CHARACTERS), owners[0], owners[1])


def encode_characters(text: str) -> Codes:
    """Return the index in `CHARACTERS` of each character of a text, uint8 [characters]."""
    codes = np.full(0x110000, CHARACTERS.index(" "), np.uint8)
    codes[[ord(character) for character in CHARACTERS]] = np.arange(len(CHARACTERS))
    return codes[np.frombuffer(text.encode("utf-32-le", "replace"), np.uint32)]


def _has_files(root: Path) -> bool:
    return has_leaf_files(root) or (root / PLAYS).is_file() or bool(_find_tables(root))


def _find_tables(root: Path) -> list[Path]:
    return find_tables(root, "train") or find_tables(root, "", ".csv")


def _convert_windows(
    x: Sequence[Any], y: Sequence[Any], place: Callable[[str, int], str] = "{} {}".format
) -> tuple[list[str], list[str]]:
    """Return the windows with their next characters, and these characters. `place` names a value in errors."""
    for row, (window, character) in enumerate(zip(x, y, strict=True)):
        if not isinstance(window, str) or len(window) != LENGTH:
            raise InputError(place("x", row), got=window, expected=f"text of {LENGTH} characters")
        if not isinstance(character, str) or len(character) != 1:
            raise InputError(place("y", row), got=character, expected="one character")
    return [window + character for window, character in zip(x, y, strict=True)], list(y)


def _rows_of_split(split: LeafSplit, every_position: bool) -> TextWindows:
    windows = list(chain.from_iterable(split.x))
    return TextWindows(encode_characters("".join(windows)), _starts_of_windows(windows), every_position)


def _starts_of_windows(windows: Sequence[str]) -> npt.NDArray[np.int64]:
    """Return the position of the first character of each window in a text that joins all windows.

    In this text the next character follows each window, so a window takes LENGTH + 1 characters.
    """
    return np.arange(len(windows)) * (LENGTH + 1)


def _read_table(root: Path, every_position: bool) -> tuple[list[TextWindows], list[list[str]]]:
    frame = read_tables(_find_tables(root), ("character_id", "x", "y"))
    windows, _ = _convert_windows(frame["x"].tolist(), frame["y"].tolist(), partial(name_cell, frame))
    owners = frame["character_id"].to_numpy(str)
    held = hold_out_rows(owners, "shakespeare")
    codes, starts = encode_characters("".join(windows)), _starts_of_windows(windows)
    rows = [TextWindows(codes, starts[part], every_position) for part in (~held, held)]
    return rows, [owners[~held].tolist(), owners[held].tolist()]


def _read_plays(path: Path, every_position: bool) -> tuple[list[TextWindows], list[list[str]]]:
    """Return the training and the test windows in a file of plays, and each window's role."""
    try:
        plays = read_regular_file(path).decode("utf-8-sig").replace("\r\n", "\n")
    except (OSError, ValueError) as error:
        raise InputError(str(path), f"it cannot be read as text ({read_failure(error)})") from None
    speeches: dict[str, list[str]] = defaultdict(list)
    for speech in _SPEECH.finditer(plays):
        speeches[speech["role"]].append(speech["text"])
    texts = {role: "\n".join(parts) for role, parts in sorted(speeches.items())}
    roles = {role: text for role, text in texts.items() if len(text) >= MIN_CHARACTERS}
    if not roles:
        expected = (
            "speeches with a line 'ROLE:' first and an empty line last, "
            f"and a role with at least {MIN_CHARACTERS} characters"
        )
        raise InputError(str(path), "it has no role with enough text", expected=expected)
    step = LENGTH if every_position else 1
    codes = encode_characters("".join(roles.values()))
    starts: list[list[npt.NDArray[np.int64]]] = [[], []]
    first = 0
    for text in roles.values():
        end = first + len(text)
        cut = end - int(TEST_SHARE * len(text))
        for split, (start, stop) in enumerate(((first, cut), (cut, end))):
            starts[split].append(np.arange(start, stop - LENGTH, step))
        first = end
    rows = [TextWindows(codes, np.concatenate(parts), every_position) for parts in starts]
    owners = [np.repeat(list(roles), [len(part) for part in parts]).tolist() for parts in starts]
    return rows, owners
