"""The logs of a run, which only grow, and their digests."""

import os
from contextlib import suppress
from pathlib import Path

from fedraa.errors import Unwritable
from fedraa.messages import State
from fedraa.rundir.atomic_files import hash_file
from fedraa.rundir.file_names import CLIENTS, EVALS, EVENTS

# The name of each log in a checkpoint, and its file.
LOGS = {"events": EVENTS, "evals": EVALS, "clients": CLIENTS}
# The key of the logs' digests in a checkpoint.
DIGESTS = "sha256"


class GrowingFile:
    """A file of whole lines, with the SHA-256 of its content."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.stream = path.open("ab", buffering=0)
        self.size = os.fstat(self.stream.fileno()).st_size
        self._digest = hash_file(path)

    def append(self, line: bytes) -> None:
        """Append the line. If it cannot be written completely, append nothing and raise Unwritable."""
        unwritten = memoryview(line)
        try:
            while unwritten:
                count = os.write(self.stream.fileno(), unwritten)
                unwritten = unwritten[count:]
        except BaseException as error:
            with suppress(OSError):
                self.stream.truncate(self.size)
            if isinstance(error, OSError):
                raise Unwritable(str(self.path), f"the file cannot be written: {error.strerror or error}") from error
            raise
        self.size += len(line)
        self._digest.update(line)

    def restore(self, size: int) -> None:
        """Remove all bytes of the file after the first `size` bytes."""
        self.stream.truncate(size)
        self.size = size
        self._digest = hash_file(self.path, size)

    @property
    def sha256(self) -> str:
        return self._digest.hexdigest()


def describe_damage(directory: Path, state: State) -> str | None:
    """Return the reason why a checkpoint does not fit the logs, as a part of a sentence; None if it fits.

    The checkpoint has the sizes and the digests of the logs. The logs may have grown since then. Their first bytes must
    be unchanged.
    """
    log = state["log"]
    for name, file in LOGS.items():
        if name not in log:
            continue
        path = directory / file
        size = log[name]
        try:
            if path.stat().st_size < size:
                return f"the checkpoint is ahead of {file}"
            if hash_file(path, size).hexdigest() != log[DIGESTS][name]:
                return f"the checkpoint does not fit {file}, which was changed"
        except OSError as error:
            return f"the checkpoint does not fit {file}, which cannot be read: {error.strerror or error}"
    return None
