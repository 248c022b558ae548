"""Checkpoints, which contain the whole state of a run. They are files without pickle.

A file holds, in this order:
    a magic line
    the length (8 bytes, little endian) and the text of a JSON tree, in which `{"$array": i}` stands for the i-th array
    the arrays in NumPy's .npy format
    the SHA-256 of all bytes before it
"""

import hashlib
import io
import json
import os
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from threading import Thread
from typing import Any, BinaryIO

import numpy as np
import numpy.typing as npt

from fedraa.errors import Damaged, InputError, short_text
from fedraa.messages import State
from fedraa.reading.regular_files import open_regular_file, read_regular_file
from fedraa.rundir.atomic_files import PARTIAL, hash_file, replace_file
from fedraa.rundir.config_file import FORMAT, check_format

MAGIC = b"fedraa checkpoint 1\n"
# In a file, the length of the JSON text takes 8 bytes, and the digest 32 bytes.
LENGTH, DIGEST = 8, 32
SUFFIX = ".ckpt"
# If a checkpoint has at least this size, a thread writes it while the run continues.
MIN_THREAD_BYTES = 1 << 25
# Two checkpoints are kept. If the newest is damaged, a run resumes from the other one.
CHECKPOINTS_KEPT = 2
ARRAY = "$array"
NOT_A_CHECKPOINT = "the file is not a checkpoint"
TORN = "the file is torn or changed: its checksum is wrong"
# Under this key, the state has the settings of the run. A resumed run must have the same settings.
ASKED = "experiment"
# Under this key, the state has the number of the file format.
FORMAT_KEY = "format"


class Saver:
    """A writer of checkpoints.

    A thread writes large checkpoints while the run continues. The thread has a copy of all arrays that may change.

    Attributes:
        seconds: The seconds that writing the newest checkpoint took.
    """

    def __init__(self, min_thread_bytes: int = MIN_THREAD_BYTES) -> None:
        self._min_thread_bytes = min_thread_bytes
        self._writing: Thread | None = None
        self._error: BaseException | None = None
        self.seconds = 0.0

    def save(self, directory: Path, step: int, state: State) -> None:
        """Write the state to `directory`/STEP.ckpt. Delete all checkpoints except the newest `CHECKPOINTS_KEPT`.

        If the thread could not write the previous checkpoint, this method raises the error.

        Args:
            directory: The folder of checkpoints.
            step: The number of server updates, which names the file.
            state: The state.
        """
        self.wait()
        text, arrays = _encode_state({FORMAT_KEY: FORMAT} | state)
        if sum(array.nbytes for array in arrays) < self._min_thread_bytes:
            self._write_checkpoint(directory, step, text, arrays)
            self.wait()
            return
        stable = [array.copy() if _has_writeable_memory(array) else array for array in arrays]
        self._writing = Thread(target=self._write_checkpoint, args=(directory, step, text, stable), name="checkpoint")
        self._writing.start()

    def wait(self) -> None:
        """Wait until the thread has written the checkpoint. Raise the thread's error, if there was one."""
        if self._writing is not None:
            self._writing.join()
        error = self._error
        self._writing = None
        self._error = None
        if error is not None:
            raise error

    def _write_checkpoint(self, directory: Path, step: int, text: bytes, arrays: Sequence[npt.NDArray[Any]]) -> None:
        started = time.monotonic()
        try:
            _store_checkpoint(directory, step, text, arrays)
        # Method `wait` raises this error in the thread of the run.
        except BaseException as error:
            self._error = error
        self.seconds = time.monotonic() - started


def _store_checkpoint(directory: Path, step: int, text: bytes, arrays: Sequence[npt.NDArray[Any]]) -> None:
    directory.mkdir(exist_ok=True)
    with replace_file(directory / f"{step:08d}{SUFFIX}") as stream:
        _write_parts(stream, text, arrays)
    for old in newest_first(directory)[CHECKPOINTS_KEPT:]:
        old.unlink()


def _has_writeable_memory(array: npt.NDArray[Any]) -> bool:
    base: object = array
    while isinstance(base, np.ndarray):
        if base.flags.writeable:
            return True
        base = base.base
    return False


def load_latest(directory: Path, find_problem: Callable[[State], str | None]) -> State | None:
    """Return the state of the newest usable checkpoint, and delete all newer checkpoints.

    Args:
        directory: The folder of checkpoints.
        find_problem: Returns None if a state fits the log, otherwise the problem, such as "it is ahead of the log".

    Returns:
        The state, or None if no checkpoint was ever written.

    Raises:
        InputError: No checkpoint can be used, or a checkpoint has another format.
    """
    choice = choose_checkpoint(directory, find_problem, read_checkpoint)
    if choice is None:
        return None
    for path in (*map(directory.joinpath, choice.skipped), *directory.glob("*" + PARTIAL)):
        with suppress(OSError):
            path.unlink()
    return {key: value for key, value in choice.state.items() if key != FORMAT_KEY}


@dataclass(frozen=True)
class UsableCheckpoint:
    """The checkpoint to resume from.

    `skipped` maps the file name of each newer checkpoint to the reason why it cannot be used.
    """

    path: Path
    state: State
    skipped: dict[str, str]


def choose_checkpoint(
    directory: Path, find_problem: Callable[[State], str | None], read_state_of: Callable[[Path], State]
) -> UsableCheckpoint | None:
    """Return the newest usable checkpoint, and change nothing on the disk.

    The errors are those of `load_latest`.

    Args:
        directory: The folder of checkpoints.
        find_problem: Returns None if a state fits the log, otherwise the problem.
        read_state_of: Returns the state in a file.
    """
    problems: dict[str, str] = {}
    for path in newest_first(directory):
        try:
            state = read_state_of(path)
        except Damaged as error:
            problems[path.name] = error.problem
            continue
        check_format(path, state.get(FORMAT_KEY))
        problem = find_problem(state)
        if problem is None:
            return UsableCheckpoint(path, state, problems)
        problems[path.name] = problem
    if problems:
        listed = "; ".join(f"{name}: {problem}" for name, problem in problems.items())
        raise InputError("run", f"no checkpoint in {directory} can be used: {listed}", hint="start the run again")
    return None


def newest_first(directory: Path) -> list[Path]:
    """Return the checkpoints in a folder, the newest first; none if it does not exist.

    Files that are not named after a step, such as a copy of a checkpoint, are left out.

    Raises InputError if the path is not a folder.
    """
    if os.path.lexists(directory) and not directory.is_dir():
        raise InputError(
            "run", f"{directory} is not a folder of checkpoints", hint="restore it, or start the run again"
        )
    named_by_step = [path for path in directory.glob("*" + SUFFIX) if path.stem.isdecimal()]
    return sorted(named_by_step, key=lambda path: int(path.stem), reverse=True)


def write_state(stream: BinaryIO, state: State) -> None:
    """Write a state to a stream.

    Raises TypeError for a value that is neither JSON nor an array of plain numbers.
    """
    _write_parts(stream, *_encode_state(state))


def _encode_state(state: State) -> tuple[bytes, list[npt.NDArray[Any]]]:
    """Return the JSON text of a state, and the arrays to which the text refers."""
    arrays: dict[object, tuple[int, npt.NDArray[Any]]] = {}
    text = json.dumps(state, default=lambda value: _encode_value(value, arrays)).encode()
    return text, [array for _, array in arrays.values()]


def _write_parts(stream: BinaryIO, text: bytes, arrays: Sequence[npt.NDArray[Any]]) -> None:
    hashed = _Hashed(stream)
    hashed.write(MAGIC + len(text).to_bytes(LENGTH, "little") + text)
    for array in arrays:
        np.lib.format.write_array(hashed, array, allow_pickle=False)
    stream.write(hashed.digest())


def read_state(content: bytes) -> State:
    """Return the state in a checkpoint's bytes.

    Raises Damaged if the bytes have changed.
    """
    if not content.startswith(MAGIC):
        raise Damaged("checkpoint", NOT_A_CHECKPOINT)
    body = memoryview(content)[:-DIGEST]
    if hashlib.sha256(body).digest() != content[-DIGEST:]:
        raise Damaged("checkpoint", TORN)
    stream = io.BytesIO(body)
    stream.seek(len(MAGIC))
    length = int.from_bytes(stream.read(LENGTH), "little")
    tree = json.loads(stream.read(length))
    arrays = list(_read_arrays(stream, len(body)))
    return dict(_decode_tree(tree, arrays))


def read_head(path: Path) -> State:
    """Return the state in a checkpoint, with `{"$array": i}` in place of the i-th array.

    This needs less memory than `read_checkpoint`.

    Raises Damaged if the file has changed since it was written.
    """
    try:
        with open_regular_file(path) as stream:
            body = os.fstat(stream.fileno()).st_size - DIGEST
            if not stream.read(len(MAGIC)) == MAGIC or body < len(MAGIC) + LENGTH:
                raise Damaged(path.name, NOT_A_CHECKPOINT)
            if hash_file(path, body).digest() != _read_at(stream, body, DIGEST):
                raise Damaged(path.name, TORN)
            length = int.from_bytes(_read_at(stream, len(MAGIC), LENGTH), "little")
            return dict(json.loads(stream.read(length)))
    except OSError as error:
        raise Damaged(path.name, f"the file cannot be read: {error.strerror or error}") from None


def _read_at(stream: BinaryIO, place: int, length: int) -> bytes:
    stream.seek(place)
    return stream.read(length)


def read_checkpoint(path: Path) -> State:
    """Return the state in a checkpoint.

    Raises Damaged if the file cannot be read or has changed since it was written.
    """
    try:
        return read_state(read_regular_file(path))
    except OSError as error:
        raise Damaged(path.name, f"the file cannot be read: {error.strerror or error}") from None


def _encode_value(value: object, arrays: dict[object, tuple[int, npt.NDArray[Any]]]) -> object:
    """Return the JSON value of a NumPy scalar or array. A new array is added to `arrays`."""
    if isinstance(value, np.generic):
        return value.item()
    if not isinstance(value, np.ndarray) or value.dtype.hasobject:
        raise TypeError(f"a checkpoint cannot hold {short_text(value)}")
    # Arrays with the same memory address, type and shape are stored once. Empty arrays have no memory.
    key: object = id(value)
    if value.size:
        key = (value.ctypes.data, value.dtype, value.shape, value.strides)
    index, _ = arrays.setdefault(key, (len(arrays), value))
    return {ARRAY: index}


def _read_arrays(stream: BinaryIO, end: int) -> Iterator[npt.NDArray[Any]]:
    while stream.tell() < end:
        yield np.lib.format.read_array(stream, allow_pickle=False)


def _decode_tree(value: Any, arrays: list[npt.NDArray[Any]]) -> Any:
    """Return the tree, in which arrays replace the references `{"$array": i}`."""
    if isinstance(value, list):
        return [_decode_tree(item, arrays) for item in value]
    if isinstance(value, dict):
        if value.keys() == {ARRAY}:
            return arrays[value[ARRAY]]
        return {key: _decode_tree(item, arrays) for key, item in value.items()}
    return value


class _Hashed:
    """A writer that computes the digest of all written bytes."""

    def __init__(self, stream: BinaryIO) -> None:
        self._stream = stream
        self._hash = hashlib.sha256()

    def write(self, content: bytes) -> int:
        self._hash.update(content)
        return self._stream.write(content)

    def digest(self) -> bytes:
        return self._hash.digest()
