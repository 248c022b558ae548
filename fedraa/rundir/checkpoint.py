"""Checkpoints: a run's whole state in one file, written whole or not at all, checked when read, without pickle.

A file is: a magic line; the length (8 bytes, little endian) and text of a JSON tree in which `{"$array": i}`
stands for the i-th array; the arrays in NumPy's .npy format; the SHA-256 of all before it.
"""

import hashlib
import io
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import numpy.typing as npt

from fedraa.messages import State
from fedraa.rundir.files import PARTIAL, replacing

MAGIC = b"fedraa checkpoint 1\n"
LENGTH, DIGEST = 8, 32  # bytes
SUFFIX = ".ckpt"
KEPT = 2  # the newest, and the one before in case that one is damaged
ARRAY = "$array"


class Damaged(Exception):
    """A checkpoint that is not what was written; the message says how."""


def save(directory: Path, step: int, state: State) -> None:
    """Write `directory`/STEP.ckpt and drop all but the `KEPT` newest."""
    directory.mkdir(exist_ok=True)
    with replacing(directory / f"{step:08d}{SUFFIX}") as stream:
        write(stream, state)
    for old in newest_first(directory)[KEPT:]:
        old.unlink()


def load_latest(directory: Path, usable: Callable[[State], bool]) -> State | None:
    """The newest checkpoint that is whole and `usable`; newer files, which are neither, are deleted.

    None if no checkpoint was ever written. Raises ValueError if there are some and none will do.
    """
    paths = newest_first(directory)
    wrong = []
    for path in paths:
        try:
            state = read(path.read_bytes())
        except Damaged as error:
            wrong.append(f"{path.name} {error}")
            continue
        if usable(state):
            for bad in (*paths[: len(wrong)], *directory.glob("*" + PARTIAL)):
                bad.unlink()
            return state
        wrong.append(f"{path.name} is ahead of the log")
    if wrong:
        raise ValueError(f"run: no checkpoint in {directory} can be used: {'; '.join(wrong)}; start the run anew")
    return None


def newest_first(directory: Path) -> list[Path]:
    return sorted(directory.glob("*" + SUFFIX), reverse=True)


def write(stream: BinaryIO, state: State) -> None:
    """Raises TypeError for what is neither a JSON value nor an array of plain numbers."""
    arrays: dict[int, tuple[int, npt.NDArray[Any]]] = {}
    text = json.dumps(state, default=lambda value: _encode(value, arrays)).encode()
    hashed = _Hashed(stream)
    hashed.write(MAGIC + len(text).to_bytes(LENGTH, "little") + text)
    for _, array in arrays.values():
        np.lib.format.write_array(hashed, array, allow_pickle=False)
    stream.write(hashed.digest())


def read(content: bytes) -> State:
    """The state in a checkpoint's bytes; Damaged if they are not those that were written."""
    if not content.startswith(MAGIC):
        raise Damaged("is not a checkpoint")
    body, digest = memoryview(content)[:-DIGEST], content[-DIGEST:]
    if hashlib.sha256(body).digest() != digest:
        raise Damaged("is torn or changed: its checksum is wrong")
    stream = io.BytesIO(body)
    stream.seek(len(MAGIC))
    length = int.from_bytes(stream.read(LENGTH), "little")
    tree = json.loads(stream.read(length))
    arrays = list(_arrays(stream, len(body)))
    return dict(_decode(tree, arrays))


def _encode(value: object, arrays: dict[int, tuple[int, npt.NDArray[Any]]]) -> object:
    if isinstance(value, np.generic):
        return value.item()
    if not isinstance(value, np.ndarray) or value.dtype.hasobject:
        raise TypeError(f"a checkpoint cannot hold {value!r}")
    return {ARRAY: arrays.setdefault(id(value), (len(arrays), value))[0]}


def _arrays(stream: BinaryIO, end: int) -> Iterator[npt.NDArray[Any]]:
    while stream.tell() < end:
        yield np.lib.format.read_array(stream, allow_pickle=False)


def _decode(value: Any, arrays: list[npt.NDArray[Any]]) -> Any:
    if isinstance(value, list):
        return [_decode(item, arrays) for item in value]
    if isinstance(value, dict):
        if value.keys() == {ARRAY}:
            return arrays[value[ARRAY]]
        return {key: _decode(item, arrays) for key, item in value.items()}
    return value


class _Hashed:
    """Writes through to a stream and keeps the digest of what went by."""

    def __init__(self, stream: BinaryIO) -> None:
        self._stream, self._hash = stream, hashlib.sha256()

    def write(self, content: bytes) -> int:
        self._hash.update(content)
        return self._stream.write(content)

    def digest(self) -> bytes:
        return self._hash.digest()
