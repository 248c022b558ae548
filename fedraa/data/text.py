"""Conversion of texts to token ids, and the data set AG News (Zhang et al. 2015)."""

import re
from collections import Counter
from collections.abc import Iterable, Sequence
from itertools import chain
from pathlib import Path

import numpy as np
import numpy.typing as npt

from fedraa.data.dataset import Dataset
from fedraa.errors import InputError, locate_error
from fedraa.reading.table_file import open_table

VOCABULARY = 10_000
"""Number of token ids. Id 0 is padding, id 1 is any rare word, and every other id is one frequent word."""
FIRST_WORD = 2
"""The id of the most frequent word."""
NOT_COUNTED = -100
"""The target of a position without a prediction. The objective next-token ignores such positions."""
LENGTH = 64
"""Number of tokens of a text of AG News."""
_CLASSES = 4
_WORD = re.compile(r"[a-z0-9]+")


def load_agnews(data_dir: Path) -> Dataset:
    """Return AG News: texts as tokens, int64 [n, 64], and labels 0 to 3.

    The files `agnews/train.csv.gz` and `agnews/test.csv.gz` in `data_dir` have the columns label and text. The id of a
    word is its rank by frequency in the training texts. A text is cut to `LENGTH` words, or padded with 0. Raises
    InputError if a file is missing or malformed.
    """
    y_train, train = _read_split(data_dir / "agnews" / "train.csv.gz")
    y_test, test = _read_split(data_dir / "agnews" / "test.csv.gz")
    ids = rank_words(chain.from_iterable(train))
    x_train, x_test = encode_texts(train, ids, LENGTH), encode_texts(test, ids, LENGTH)
    return Dataset("agnews", x_train, y_train, x_test, y_test, _CLASSES)


def split_words(text: str) -> list[str]:
    """Return the words of a text in lower case. A word consists of ASCII letters and digits."""
    return _WORD.findall(text.lower())


def rank_words(words: Iterable[str]) -> dict[str, int]:
    """Return a token id for each of the most frequent words.

    The most frequent word has the id `FIRST_WORD`. Equally frequent words are in alphabetical order.
    """
    counts = Counter(words)
    ranked = sorted(counts, key=lambda word: (-counts[word], word))[: VOCABULARY - FIRST_WORD]
    return {word: index for index, word in enumerate(ranked, start=FIRST_WORD)}


def encode_texts(texts: Sequence[Sequence[str]], ids: dict[str, int], length: int) -> npt.NDArray[np.int64]:
    """Return the ids of the first `length` words of each text, [texts, length]. An unknown word has the id 1."""
    tokens = np.zeros((len(texts), length), dtype=np.int64)
    for row, words in zip(tokens, texts, strict=True):
        row[: len(words)] = [ids.get(word, 1) for word in words[:length]]
    return tokens


def _read_split(path: Path) -> tuple[npt.NDArray[np.int64], list[list[str]]]:
    try:
        table = open_table(str(path)).texts(("label", "text"))
    except InputError as error:
        raise locate_error(error, "dataset 'agnews'") from None
    known = {str(label): label for label in range(_CLASSES)}
    for line, label in table["label"].items():
        if label not in known:
            field = f"dataset 'agnews': {path} line {line} label"
            raise InputError(field, got=label, expected=f"labels from 0 to {_CLASSES - 1}")
    labels = table["label"].map(known).to_numpy(np.int64, copy=True)
    return labels, [split_words(text)[:LENGTH] for text in table["text"]]
