"""Memory that a process shares with its child processes, and objects with arrays in this memory."""

import math
import mmap
import os
import pickle
import tempfile
import weakref
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

# Smaller arrays are a part of the pickled object.
INLINE_BYTES = 2**14
# Arrays begin at multiples of this number, which is the size of a cache line.
ALIGNMENT = 64
# The memory is mapped in segments of this size. Python keeps a file descriptor for each map, so a map for each slot
# could exceed the limits of the system.
SEGMENT_BYTES = 2**26

Bytes = npt.NDArray[np.uint8]


class Place(NamedTuple):
    """A part of the shared memory, in bytes."""

    start: int
    size: int


class SharedMemory:
    """An unnamed file in memory. It disappears when the last process that has opened it ends or is killed.

    Args:
        descriptor: The file descriptor, which a child process inherits.
    """

    def __init__(self, descriptor: int) -> None:
        self.descriptor = descriptor
        # The mapped segments. A slot larger than SEGMENT_BYTES has several segments in one map.
        self._maps: dict[Place, mmap.mmap] = {}

    @classmethod
    def create(cls) -> "SharedMemory":
        if hasattr(os, "memfd_create"):
            return cls(os.memfd_create("fedraa"))
        with tempfile.TemporaryFile() as file:
            return cls(os.dup(file.fileno()))

    def view(self, place: Place) -> memoryview:
        """Return the bytes of a slot that `Slots` has allocated."""
        first = place.start // SEGMENT_BYTES * SEGMENT_BYTES
        start = place.start - first
        mapped = Place(first, _round_up(start + place.size, SEGMENT_BYTES))
        if mapped not in self._maps:
            self._maps[mapped] = mmap.mmap(self.descriptor, mapped.size, offset=first)
        return memoryview(self._maps[mapped])[start : start + place.size]


@dataclass(frozen=True, eq=False)
class Lease:
    """A slot of the shared memory that is in use. It is free again when no array uses its bytes any more."""

    place: Place
    content: Bytes


class Slots:
    """The slots of a shared memory. Only the process that created the memory allocates slots."""

    def __init__(self) -> None:
        self.memory = SharedMemory.create()
        self._free: list[Place] = []
        self._end = 0

    def lease(self, size: int) -> Lease:
        """Return a slot of at least `size` bytes."""
        fitting = (place for place in self._free if size <= place.size <= max(2 * size, mmap.ALLOCATIONGRANULARITY))
        place = min(fitting, key=lambda place: place.size, default=None)
        if place is None:
            place = self._allocate(size)
        else:
            self._free.remove(place)
        content = np.frombuffer(self.memory.view(place), np.uint8)
        weakref.finalize(content, self._free.append, place).atexit = False
        return Lease(place, content)

    def close(self) -> None:
        """Close the file. Arrays in the shared memory stay valid."""
        os.close(self.memory.descriptor)

    def _allocate(self, size: int) -> Place:
        size = _round_up(max(1, size), mmap.ALLOCATIONGRANULARITY)
        start = self._end
        # A slot is in one segment, or begins with a segment.
        if start % SEGMENT_BYTES + size > SEGMENT_BYTES:
            start = _round_up(start, SEGMENT_BYTES)
        # The system provides memory only for bytes that are used.
        os.ftruncate(self.memory.descriptor, _round_up(start + size, SEGMENT_BYTES))
        self._end = start + size
        return Place(start, size)


class Piece(NamedTuple):
    """The place of an array in the shared memory: the slot, and the array's first byte and size in the slot."""

    slot: Place
    start: int
    size: int


class Packed(NamedTuple):
    """A pickled object, and the bytes of its large arrays, which are not in `body`."""

    body: bytes
    arrays: list[memoryview]


def pack(value: object, room: float = math.inf, dump: Callable[..., bytes] = pickle.dumps) -> Packed:
    """Pickle an object without its large arrays.

    Args:
        value: The object.
        room: The bytes that all large arrays may need together. Arrays that do not fit are pickled with the object.
        dump: `pickle.dumps`, or a function with the same arguments.
    """
    arrays: list[memoryview] = []
    left = room

    def keep_in_body(buffer: pickle.PickleBuffer) -> bool:
        nonlocal left
        array = buffer.raw()
        needed = count_room([array])
        if array.nbytes < INLINE_BYTES or needed > left:
            return True
        left -= needed
        arrays.append(array)
        return False

    return Packed(dump(value, protocol=5, buffer_callback=keep_in_body), arrays)


def count_room(arrays: Iterable[memoryview]) -> int:
    """Return the bytes that `write` needs for arrays."""
    return sum(_round_up(array.nbytes, ALIGNMENT) for array in arrays)


def write(arrays: Iterable[memoryview], slot: Place, content: Any) -> list[Piece]:
    """Copy arrays into a slot with the bytes `content`, and return their places."""
    pieces = []
    start = 0
    for array in arrays:
        content[start : start + array.nbytes] = array
        pieces.append(Piece(slot, start, array.nbytes))
        start += _round_up(array.nbytes, ALIGNMENT)
    return pieces


def unpack(body: bytes | memoryview, pieces: Iterable[Piece], find: Callable[[Place], Any]) -> Any:
    """Return the object. Its large arrays are read-only views of the shared memory.

    Args:
        body: The bytes of the pickled object.
        pieces: The places of the large arrays.
        find: Returns the bytes of a slot.
    """
    views = [memoryview(find(slot))[start : start + size].toreadonly() for slot, start, size in pieces]
    # The type hint of `pickle.loads` lacks memoryviews.
    content: Any = body
    return pickle.loads(content, buffers=views)


def _round_up(size: int, unit: int) -> int:
    return -(-size // unit) * unit
