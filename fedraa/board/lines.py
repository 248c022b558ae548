"""A reader of a file that another process is writing. It reads each line once."""

import os
from pathlib import Path
from typing import BinaryIO

from fedraa.errors import InputError
from fedraa.reading.regular_files import open_regular_file

# A call reads this number of bytes. The board needs a few milliseconds to parse them.
CHUNK_BYTES = 1 << 18
# The maximum length of a line in bytes.
MAX_LINE_BYTES = 1 << 26
# The reader keeps this number of the last bytes that it read. If the file still has these bytes in the same place, the
# file only became longer.
COMPARED_BYTES = 256


class GrowingLines:
    """A reader of a growing file. Each call returns new lines.

    A resumed run removes the lines after its checkpoint. The reader then starts again at the beginning of the file.

    Attributes:
        size: Size of the file in bytes at the last call.
        offset: Number of bytes that were read from the current file.
        number: Number of lines that were read from the current file.
        more: True if the file has more lines to read.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.size = 0
        self._reset_position()

    def _reset_position(self) -> None:
        self.offset = 0
        self.number = 0
        self._last = b""
        self.more = False
        self._seen: tuple[int, int, int] | None = None

    def read(self) -> tuple[list[str], bool]:
        """Return the next complete lines, and True if the reader has started again at the file's beginning.

        It starts again if the file was shortened or replaced.

        Raises:
            OSError: The file cannot be read.
            InputError: A line is longer than `MAX_LINE_BYTES`.
        """
        with open_regular_file(self.path) as stream:
            facts = os.fstat(stream.fileno())
            seen = facts.st_ino, facts.st_size, facts.st_mtime_ns
            if seen == self._seen and not self.more:
                return [], False
            is_restarted = self._seen is not None and self._is_other(stream, facts)
            if is_restarted:
                self._reset_position()
            self._seen, self.size = seen, facts.st_size
            stream.seek(self.offset)
            text = self._read_chunk(stream)
        whole = text[: text.rfind(b"\n") + 1]
        self.more = bool(whole) and self.offset + len(text) < self.size
        self.offset += len(whole)
        self._last = (self._last + whole)[-COMPARED_BYTES:]
        lines = whole.decode(errors="replace").split("\n")[:-1]
        self.number += len(lines)
        return lines, is_restarted

    def _read_chunk(self, stream: BinaryIO) -> bytes:
        """Read chunks of `CHUNK_BYTES` bytes until a chunk has a line break or the file ends. Return all chunks."""
        parts = [stream.read(CHUNK_BYTES)]
        while parts[-1] and b"\n" not in parts[-1]:
            parts.append(stream.read(CHUNK_BYTES))
            if len(parts) * CHUNK_BYTES > MAX_LINE_BYTES:
                raise InputError(str(self.path), f"line {self.number + 1} is longer than {MAX_LINE_BYTES} bytes")
        return b"".join(parts)

    def _is_other(self, stream: BinaryIO, facts: os.stat_result) -> bool:
        """Return True if the file was replaced or shortened, or changed before the reader's position."""
        assert self._seen is not None
        if facts.st_ino != self._seen[0] or facts.st_size < self.offset:
            return True
        stream.seek(self.offset - len(self._last))
        return stream.read(len(self._last)) != self._last
