"""Reddit: comments for the prediction of the next word. A client is an author (Caldas et al. 2018)."""

from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np

from fedraa.data.natural.folders import find_folder
from fedraa.data.natural.leaf import LeafSplit, has_leaf_files, read_leaf
from fedraa.data.sources.federated_dataset import FederatedDataset
from fedraa.data.text import FIRST_WORD, NOT_COUNTED, encode_texts, rank_words
from fedraa.data.tree import Array
from fedraa.errors import InputError

GET = "data/reddit/README.md of https://github.com/TalwalkarLab/leaf has the address of the files"
LENGTH = 10
PADDING = "<PAD>"
Sequences = list[list[str]]


def read_reddit(data_dir: Path | None) -> FederatedDataset:
    """Return Reddit: tokens, int64 [n, 10], and the next token at each position, int64 [n, 10].

    There are 10,000 token ids: `<PAD>` is 0, any rare word is 1, and the others are the most frequent words of the
    training comments. In LEAF's files, a comment is a list of sequences of 10 words. Its y has `target_tokens` (the
    words shifted by one) and `count_tokens` (0 for positions after `<EOS>`, otherwise 1). The target of `<EOS>` does
    not count, because it is always `<PAD>`. Sequences in which no position counts are omitted. Rare words can be
    predicted correctly, unlike in LEAF.
    """
    root = find_folder("reddit", data_dir, has_leaf_files, GET)
    train, test = read_leaf(root, _convert_comments)
    words = chain.from_iterable(chain.from_iterable(train.x))
    ids = rank_words(word for word in words if word != PADDING)
    classes = len(ids) + FIRST_WORD
    ids[PADDING] = 0
    pairs = [_encode_split(split, ids) for split in (train, test)]
    return FederatedDataset("reddit", pairs[0], pairs[1], classes, train.owners, test.owners)


def _convert_comments(x: list[Any], y: list[Any]) -> tuple[Sequences, list[tuple[list[str], list[float]]]]:
    """Return an author's sequences, and for each sequence the target words and the weights of these words (0 or 1)."""
    sequences: Sequences = []
    targets: list[tuple[list[str], list[float]]] = []
    for place, (comment, target) in enumerate(zip(x, y, strict=True)):
        if not isinstance(target, dict) or not {"target_tokens", "count_tokens"} <= target.keys():
            raise InputError(f"y {place}", got=target, expected="a dict with target_tokens and count_tokens")
        parts = (comment, target["target_tokens"], target["count_tokens"])
        if not all(isinstance(part, list) and len(part) == len(parts[0]) for part in parts):
            problem = "x, target_tokens and count_tokens are not lists of equal length"
            raise InputError(f"comment {place}", problem)
        for sequence, words, counts in zip(*parts, strict=True):
            for part, kinds in ((sequence, str), (words, str), (counts, (int, float))):
                if not isinstance(part, list) or len(part) != LENGTH or not all(isinstance(at, kinds) for at in part):
                    expected = f"sequences of {LENGTH} words, and {LENGTH} numbers in count_tokens"
                    raise InputError(f"comment {place}", got=part, expected=expected)
            counted = [count if word != PADDING else 0.0 for word, count in zip(words, counts, strict=True)]
            if any(counted):
                sequences.append(sequence)
                targets.append((words, counted))
    return sequences, targets


def _encode_split(split: LeafSplit, ids: dict[str, int]) -> tuple[Array, Array]:
    x = encode_texts(list(chain.from_iterable(split.x)), ids, LENGTH)
    targets = list(chain.from_iterable(split.y))
    y = encode_texts([words for words, _ in targets], ids, LENGTH)
    y[np.array([counts for _, counts in targets]) == 0] = NOT_COUNTED
    return x, y
