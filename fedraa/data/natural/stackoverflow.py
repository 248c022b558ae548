"""Stack Overflow: questions and answers for the prediction of the next word. A client is an author.

TensorFlow Federated publishes the database `stackoverflow.sqlite.lzma`. It has the tables
`client_metadata(client_id, split_name, num_examples)` and `examples(split_name, client_id, serialized_example_proto)`
with the splits train, heldout and test. An example is a serialised `tf.train.Example` with the features creation_date,
score, tags, title, tokens and type. The feature `tokens` is a sentence with spaces between its words.
"""

import sqlite3
from collections.abc import Iterator
from contextlib import closing
from itertools import chain
from pathlib import Path

import numpy as np

from fedraa.data.natural.folders import find_folder
from fedraa.data.sources.federated_dataset import FederatedDataset
from fedraa.data.text import FIRST_WORD, NOT_COUNTED, encode_texts, rank_words
from fedraa.data.tree import Array
from fedraa.errors import InputError
from fedraa.rng import generator

GET = "curl https://storage.googleapis.com/tff-datasets-public/stackoverflow.sqlite.lzma | xz -d > stackoverflow.sqlite"
FILE = "stackoverflow.sqlite"
LENGTH = 20
"""Number of predicted words of a sentence, as in the literature (Reddi et al. 2021)."""
BEGIN, END = "<BOS>", "<EOS>"


def read_stackoverflow(data_dir: Path | None, users: int = 1000, sentences: int = 512) -> FederatedDataset:
    """Return Stack Overflow: tokens, int64 [n, 20], and the next token at each position, int64 [n, 20].

    The database has 342,477 users and 135,818,730 training sentences. The users to read are drawn at random from the
    users with training and test sentences. Every call draws the same users. There are 10,000 token ids: padding is 0,
    any rare word is 1, and the others are the most frequent words in the training sentences of the drawn users.

    Args:
        data_dir: The folder with `stackoverflow.sqlite`.
        users: The number of users to read.
        sentences: The maximum number of sentences of a user in each split. If a user has more, the first are read.
    """
    path = find_folder("stackoverflow", data_dir, lambda root: (root / FILE).is_file(), GET) / FILE
    try:
        with closing(sqlite3.connect(f"{path.resolve().as_uri()}?mode=ro", uri=True)) as database:
            names = _draw_users(database, users)
            splits = [_read_split(database, split, names, sentences) for split in ("train", "test")]
    except sqlite3.Error as error:
        expected = "the database of TensorFlow Federated, with the tables client_metadata and examples"
        raise InputError(str(path), f"it cannot be read ({error})", expected=expected) from None
    ids = rank_words(chain.from_iterable(splits[0][0]))
    pairs = [_encode_sentences(texts, ids) for texts, _ in splits]
    owners = [owners for _, owners in splits]
    return FederatedDataset("stackoverflow", pairs[0], pairs[1], len(ids) + FIRST_WORD, owners[0], owners[1])


def _draw_users(database: sqlite3.Connection, count: int) -> list[str]:
    query = "SELECT client_id FROM client_metadata WHERE split_name = ?"
    train, test = ({str(row[0]) for row in database.execute(query, (split,))} for split in ("train", "test"))
    names = sorted(train & test)
    if not names:
        raise InputError(FILE, "no user has training and test sentences")
    if len(names) > count:
        names = sorted(generator(0, "stackoverflow").choice(names, count, replace=False).tolist())
    return names


def _read_split(
    database: sqlite3.Connection, split: str, names: list[str], limit: int
) -> tuple[list[list[str]], list[str]]:
    """Return the words of the sentences of these users, and the user of each sentence.

    Args:
        database: The database.
        split: The name of the split.
        names: The users.
        limit: The maximum number of sentences of a user.
    """
    query = (
        "SELECT serialized_example_proto FROM examples WHERE split_name = ? AND client_id = ? ORDER BY rowid LIMIT ?"
    )
    texts, owners = [], []
    for name in names:
        for row in database.execute(query, (split, name, limit)):
            texts.append([BEGIN, *read_feature(row[0], "tokens").split(), END])
            owners.append(name)
    return texts, owners


def _encode_sentences(texts: list[list[str]], ids: dict[str, int]) -> tuple[Array, Array]:
    tokens = encode_texts(texts, ids, LENGTH + 1)
    x, y = tokens[:, :-1], tokens[:, 1:].copy()
    y[y == 0] = NOT_COUNTED
    return np.ascontiguousarray(x), y


def read_feature(example: bytes, name: str) -> str:
    """Return the text of a feature in a serialised `tf.train.Example`.

    The path of field numbers is 1 (features), 1 (entries of a map), 2 (value), 1 (list), 1 (texts). An entry has its
    key in field 1. Raises InputError if there is no such feature.
    """
    for entry in _follow_fields(example, 1, 1):
        if _follow_fields(entry, 1) == [name.encode()]:
            return b"".join(_follow_fields(entry, 2, 1, 1)).decode()
    raise InputError(FILE, f"an example has no feature {name!r}", expected="examples of Stack Overflow")


def _follow_fields(message: bytes, *numbers: int) -> list[bytes]:
    """Return the contents of the nested fields with these numbers, one number per level."""
    messages = [message]
    for number in numbers:
        messages = list(chain.from_iterable(_read_fields(part, number) for part in messages))
    return messages


def _read_fields(message: bytes, number: int) -> Iterator[bytes]:
    """Yield the contents of all fields with this number in a message of Protocol Buffers.

    The result ends before the first field whose type has no length prefix. A `tf.train.Example` has no such field.
    """
    place = 0
    while place < len(message):
        key, place = _read_varint(message, place)
        size, place = _read_varint(message, place)
        if key & 7 != 2 or place + size > len(message):
            return
        if key >> 3 == number:
            yield message[place : place + size]
        place += size


def _read_varint(message: bytes, place: int) -> tuple[int, int]:
    """Return the variable-length integer at index `place`, and the index after it."""
    value, shift = 0, 0
    while place < len(message):
        value |= (message[place] & 0x7F) << shift
        shift += 7
        place += 1
        if message[place - 1] < 0x80:
            break
    return value, place
