"""A file that another process goes on writing: its whole lines as they come, each read once."""

import os
from pathlib import Path
from typing import BinaryIO

from fedraa.errors import InputError
from fedraa.reading import opened

CHUNK = 1 << 18  # bytes that are read at a time: what takes a few milliseconds to understand
LONGEST = 1 << 26  # bytes of a line
LAST = 256  # bytes by which it is known again


class GrowingLines:
    """The lines of a file from where the last reading ended, by byte offset.

    A run that is gone on with cuts its log back to a checkpoint and writes on, so whatever was read last must still be
    there; else the file is read anew.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.size = 0
        """Bytes of the file when it was looked at last."""
        self._forget()

    def _forget(self) -> None:
        self.offset, self.number = 0, 0
        """Bytes and lines that were read."""
        self._last, self._more = b"", False
        self._seen: tuple[int, int, int] | None = None

    def read(self) -> tuple[list[str], bool]:
        """The next whole lines, none if there are none yet; and whether they begin anew.

        Anew: what was read before is no longer in the file, which was cut back or replaced. A last line without an end
        is left for later. Raises OSError if the file cannot be read, ValueError if it has no lines.
        """
        with opened(self.path) as stream:
            facts = os.fstat(stream.fileno())
            seen = facts.st_ino, facts.st_size, facts.st_mtime_ns
            if seen == self._seen and not self._more:
                return [], False
            anew = self._seen is not None and self._is_other(stream, facts)
            if anew:
                self._forget()
            self._seen, self.size = seen, facts.st_size
            stream.seek(self.offset)
            text = self._some(stream)
        whole = text[: text.rfind(b"\n") + 1]
        self._more = bool(whole) and self.offset + len(text) < self.size
        self.offset += len(whole)
        self._last = (self._last + whole)[-LAST:]
        lines = whole.decode(errors="replace").split("\n")[:-1]
        self.number += len(lines)
        return lines, anew

    @property
    def more(self) -> bool:
        """Whether another reading would find lines at once."""
        return self._more

    def _some(self, stream: BinaryIO) -> bytes:
        """A chunk, and so much more that the first line in it is whole, if it is."""
        parts = [stream.read(CHUNK)]
        while parts[-1] and b"\n" not in parts[-1]:
            parts.append(stream.read(CHUNK))
            if len(parts) * CHUNK > LONGEST:
                raise InputError(str(self.path), f"line {self.number + 1} is longer than {LONGEST} bytes")
        return b"".join(parts)

    def _is_other(self, stream: BinaryIO, facts: os.stat_result) -> bool:
        """Whether what was read last is not where it was."""
        assert self._seen is not None
        if facts.st_ino != self._seen[0] or facts.st_size < self.offset:
            return True
        stream.seek(self.offset - len(self._last))
        return stream.read(len(self._last)) != self._last
