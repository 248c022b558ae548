"""Sentiment140: negative and positive tweets. A client is an author (Go et al. 2009, Caldas et al. 2018)."""

from functools import partial
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np

from fedraa.data.natural.folders import find_folder, hold_out_rows
from fedraa.data.natural.leaf import as_classes, has_leaf_files, read_leaf
from fedraa.data.natural.tables import find_tables, name_cell, read_tables
from fedraa.data.sources.federated_dataset import FederatedDataset
from fedraa.data.text import encode_texts, rank_words, split_words
from fedraa.data.tree import Array
from fedraa.errors import InputError

GET = (
    "hf download stanfordnlp/sentiment140 --repo-type dataset --revision refs/convert/parquet --local-dir sent140, "
    "or data/sent140/preprocess.sh of LEAF"
)
LENGTH = 25
"""Number of tokens of a tweet, as in the models of LEAF."""
SENTIMENTS = (0, 4)
"""The labels of negative and positive tweets in Hugging Face's files."""
Texts = list[list[str]]


def read_sent140(data_dir: Path | None) -> FederatedDataset:
    """Return Sentiment140: tweets as tokens, int64 [n, 25], and labels 0 (negative) or 1 (positive).

    A token id is a word's rank by frequency in the training tweets, as in `agnews`. In LEAF's files, a tweet is [id,
    date, query, user, text]. Hugging Face's training split has the columns text, user and sentiment (0 or 4). fedraa
    uses a fifth of each user's tweets in this split as test tweets.
    """
    root = find_folder("sent140", data_dir, lambda root: has_leaf_files(root) or bool(find_tables(root, "train")), GET)
    if has_leaf_files(root):
        train, test = read_leaf(root, _convert_tweets)
        texts = [list(chain.from_iterable(split.x)) for split in (train, test)]
        labels = [np.concatenate(split.y) for split in (train, test)]
        owners = [train.owners, test.owners]
    else:
        texts, labels, owners = _read_tables(root)
    ids = rank_words(chain.from_iterable(texts[0]))
    x = [encode_texts(split, ids, LENGTH) for split in texts]
    return FederatedDataset("sent140", (x[0], labels[0]), (x[1], labels[1]), 2, owners[0], owners[1])


def _convert_tweets(x: list[Any], y: list[Any]) -> tuple[Texts, Array]:
    for place, tweet in enumerate(x):
        if not isinstance(tweet, list) or len(tweet) != 5 or not isinstance(tweet[4], str):
            raise InputError(f"x {place}", got=tweet, expected="a tweet [id, date, query, user, text]")
    return [split_words(tweet[4]) for tweet in x], as_classes(y, range(2))


def _read_tables(root: Path) -> tuple[list[Texts], list[Array], list[list[str]]]:
    frame = read_tables(find_tables(root, "train"), ("text", "user", "sentiment"))
    y = as_classes(frame["sentiment"], SENTIMENTS, partial(name_cell, frame, "sentiment"))
    owners = frame["user"].to_numpy(str)
    held = hold_out_rows(owners, "sent140")
    words = [split_words(text) for text in frame["text"]]
    texts = [[words[row] for row in np.flatnonzero(rows)] for rows in (~held, held)]
    return texts, [y[~held], y[held]], [owners[~held].tolist(), owners[held].tolist()]
