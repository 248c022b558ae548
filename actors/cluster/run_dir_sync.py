"""Copies of a run directory from the server's node to the user's directory on the driver's node."""

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from fedraa.rundir.atomic_files import PARTIAL, raise_unwritable, replace_file
from fedraa.rundir.file_names import CLIENTS, EVALS, EVENTS, SUMMARY
from fedraa.rundir.run_lock import WRITER, WriteLock, this_process

# The server only appends lines to these files.
GROWING = (EVENTS, EVALS, CLIENTS)
Stamp = tuple[int, int]
"""The size of a file in bytes, and the time of its last change in nanoseconds."""


@dataclass(frozen=True)
class Changes:
    """The changes of a run directory since the last copy.

    Attributes:
        stamps: The size of each file and the time of its last change, by relative path.
        whole: The content of new and changed files.
        tails: The bytes that the server has appended to each file of `GROWING`.
    """

    stamps: dict[str, Stamp]
    whole: dict[str, bytes]
    tails: dict[str, bytes]


def write_all(directory: Path, files: Mapping[str, bytes]) -> None:
    """Write files into a directory. `files` has contents by relative path."""
    for name, content in files.items():
        (directory / name).parent.mkdir(parents=True, exist_ok=True)
        with replace_file(directory / name) as stream:
            stream.write(content)


def fill(directory: Path, files: Mapping[str, bytes]) -> dict[str, Stamp]:
    """Write files into an empty directory. Return the size and time of each file, by relative path.

    The result lacks the files of `GROWING`, because a resumed run first shortens them.
    """
    write_all(directory, files)
    return {name: stamp for name, stamp in _read_stamps(directory).items() if name not in GROWING}


def read_changes(directory: Path, seen: Mapping[str, Stamp]) -> Changes:
    """Return the changes of a run directory since the last copy. `seen` has each file's size and time at that copy.

    The logs are read after the checkpoints. So they contain all events before the newest checkpoint.
    """
    stamps = _read_stamps(directory)
    whole = {}
    tails = {}
    for name, stamp in list(stamps.items()):
        if name in GROWING or seen.get(name) == stamp:
            continue
        try:
            whole[name] = (directory / name).read_bytes()
        # The server removed this old checkpoint after the files were listed.
        except FileNotFoundError:
            del stamps[name]
    for name in GROWING:
        if name in stamps:
            start = _recorded_size(seen, name)
            with (directory / name).open("rb") as stream:
                stream.seek(start)
                tails[name] = stream.read()
            stamps[name] = (start + len(tails[name]), 0)
    return Changes(stamps, whole, tails)


@dataclass
class RunDirSync:
    """The user's copy of a run directory.

    Attributes:
        directory: The user's directory.
        seen: The size and time of each file of the server at the last copy. Other programs may have more files in the
            user's directory.
    """

    directory: Path
    seen: dict[str, Stamp] = field(default_factory=dict)

    def read(self) -> dict[str, bytes]:
        """Return the contents of all files of the copy, by relative path."""
        return {name: (self.directory / name).read_bytes() for name in _read_stamps(self.directory)}

    def apply(self, new: Changes) -> None:
        """Write changes to the copy: logs first, then checkpoints, and the summary last.

        After an interruption at any point, the run can be resumed from the copy.

        Raises Unwritable if the copy cannot be written, for example on a full disk.
        """
        with raise_unwritable(self.directory):
            for name, tail in new.tails.items():
                self._append(name, tail)
            write_all(self.directory, {name: new.whole[name] for name in sorted(new.whole, key=SUMMARY.__eq__)})
            for name in self.seen.keys() - new.stamps.keys():
                (self.directory / name).unlink(missing_ok=True)
        self.seen = new.stamps

    def _append(self, name: str, tail: bytes) -> None:
        """Write the bytes after those of the last copy of a file, and remove any other bytes there."""
        start = _recorded_size(self.seen, name)
        (self.directory / name).touch()
        with (self.directory / name).open("r+b") as stream:
            stream.truncate(start)
            stream.seek(start)
            stream.write(tail)
            stream.flush()
            os.fsync(stream.fileno())


@contextmanager
def register_writer(directory: Path) -> Iterator[None]:
    """Register this process in the block as the process that writes the user's directory.

    Raises Unwritable if the directory cannot be written.
    """
    with raise_unwritable(directory):
        log = (directory / EVENTS).open("ab", buffering=0)
    with log:
        with raise_unwritable(directory):
            write_lock = WriteLock(directory, log, this_process())
        try:
            yield
        finally:
            write_lock.release()
            if not os.fstat(log.fileno()).st_size:
                (directory / EVENTS).unlink(missing_ok=True)


def _recorded_size(stamps: Mapping[str, Stamp], name: str) -> int:
    size, _ = stamps.get(name, (0, 0))
    return size


def _read_stamps(directory: Path) -> dict[str, Stamp]:
    """Return the size and time of all files by path, without temporary files and the lock."""
    stamps = {}
    for folder, _, names in os.walk(directory):
        for name in names:
            path = Path(folder, name)
            if not name.endswith(PARTIAL) and name != WRITER:
                try:
                    stat = path.stat()
                except FileNotFoundError:
                    continue
                stamps[path.relative_to(directory).as_posix()] = (stat.st_size, stat.st_mtime_ns)
    return stamps
