"""Write a file completely or not at all, even if the process crashes."""

import hashlib
import json
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import BinaryIO

from fedraa.errors import Unwritable
from fedraa.reading.regular_files import open_regular_file

PARTIAL = ".partial"
# Bytes to read at a time.
CHUNK = 1 << 20


@contextmanager
def replace_file(path: Path) -> Iterator[BinaryIO]:
    """Open a new file that replaces `path` when the block ends without an error."""
    partial = path.with_name(path.name + PARTIAL)
    try:
        # Opening a named pipe would wait forever, and opening a symbolic link would change another file.
        partial.unlink(missing_ok=True)
        with partial.open("xb") as stream:
            yield stream
            stream.flush()
            os.fsync(stream.fileno())
        os.replace(partial, path)
    except BaseException as error:
        with suppress(OSError):
            partial.unlink()
        # The error of a write, such as that of a full disk, names no file. Other errors name the partial file.
        if isinstance(error, OSError) and error.filename in (None, str(partial)):
            error.filename = str(path)
        raise
    sync_directory(path.parent)


def json_text(value: object) -> str:
    """Return a value as indented JSON. Raise ValueError for infinity and NaN, which JSON does not have."""
    return json.dumps(value, indent=2, allow_nan=False) + "\n"


def escape_bytes(text: str) -> str:
    """Replace each byte of a path that is not UTF-8 by an escape sequence, so that the text can be written as UTF-8."""
    return text.encode(errors="backslashreplace").decode()


def write_text(path: Path, text: str) -> None:
    """Replace a file by this text in UTF-8, completely or not at all. The text is escaped by `escape_bytes`."""
    with replace_file(path) as stream:
        stream.write(escape_bytes(text).encode())


def sync_directory(directory: Path) -> None:
    """Flush the entries of a directory to the disk."""
    descriptor = os.open(directory, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


@contextmanager
def raise_unwritable(directory: Path) -> Iterator[None]:
    """Convert an OSError in the block to Unwritable."""
    try:
        yield
    except OSError as error:
        raise Unwritable(
            str(error.filename or directory), f"it cannot be written: {error.strerror or error}"
        ) from error


def hash_file(path: Path, size: int | None = None) -> "hashlib._Hash":
    """Return the SHA-256 of the file, or of its first `size` bytes."""
    sha256 = hashlib.sha256()
    left = sys.maxsize if size is None else size
    with open_regular_file(path) as stream:
        while left > 0:
            part = stream.read(min(CHUNK, left))
            if not part:
                break
            sha256.update(part)
            left -= len(part)
    return sha256
