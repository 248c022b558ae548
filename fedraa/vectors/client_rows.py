"""What a method keeps of each client: a row that is made when the client first appears."""

from collections.abc import Callable, Iterator
from itertools import chain
from tempfile import TemporaryFile
from typing import Any
from weakref import ref

import numpy as np

from fedraa.messages import State, Vector

IN_MEMORY = 2**30  # bytes of rows; beyond, further ones are in a file that is mapped
BLOCK_BYTES = 2**24


class ClientRows:
    """A float32 row [size] for each client that has appeared, in memory up to `in_memory` bytes.

    Rows that a state still has are as they were then: blocks of them are copied before they are written to.
    """

    def __init__(self, size: int, clients: int, new: Callable[[], Vector], in_memory: int = IN_MEMORY) -> None:
        self._size, self.clients, self._new = size, clients, new
        self._place: dict[int, int] = {}
        self._blocks: list[Any] = []
        self._saved: list[list[ref[Any]]] = []  # what states have of each block
        self._each = max(1, min(clients, BLOCK_BYTES // max(1, 4 * size)))
        self._in_memory = max(1, in_memory // (4 * size * self._each + 1))

    def __len__(self) -> int:
        """Clients that have appeared."""
        return len(self._place)

    def __getitem__(self, client: int) -> Vector:
        """The row of a client, as a view that may be written to now."""
        place = self._place.get(client)
        if place is None:
            place = self._place[client] = len(self._place)
            if place == len(self._blocks) * self._each:
                self._blocks.append(self._block(len(self._blocks)))
                self._saved.append([])
            self._writable(place)[:] = self._new()
        return self._writable(place)

    def __iter__(self) -> Iterator[int]:
        """The clients that have appeared, in that order."""
        return iter(self._place)

    def __contains__(self, client: int) -> bool:
        """Whether the client has appeared."""
        return client in self._place

    def peek(self, client: int) -> Vector:
        """The row of a client, to be read, or what a new one would be; nothing is made."""
        return self._row(self._place[client]) if client in self._place else self._new()

    def sum(self, piece: slice) -> Vector:
        """The sum of that piece of the rows of all clients, 0 for those that have not appeared, in their order.

        Bit for bit what NumPy makes of one array of all.
        """
        total = np.zeros(piece.stop - piece.start, np.float32)
        for client in sorted(self._place):
            total += self._row(self._place[client])[piece]
        return total

    def _row(self, place: int) -> Vector:
        row: Vector = self._blocks[place // self._each][place % self._each]
        return row

    def _writable(self, place: int) -> Vector:
        number = place // self._each
        block = self._blocks[number]
        if not block.flags.writeable:
            if any(saved() is not None for saved in self._saved[number]):
                self._blocks[number] = self._block(number)
                self._blocks[number][:] = block
                self._saved[number] = []
            else:
                block.flags.writeable = True
        return self._row(place)

    def _block(self, number: int) -> Any:
        shape = (self._each, self._size)
        if number < self._in_memory:
            return np.empty(shape, np.float32)
        with TemporaryFile() as file:  # which goes when nobody maps it any more
            file.truncate(4 * self._each * self._size)
            return np.memmap(file, np.float32, "r+", shape=shape)

    def state(self) -> State:
        """The clients, in the order in which they appeared, and their rows, as views of the blocks that they are in."""
        starts = range(0, len(self._place), self._each)
        for block in self._blocks:
            block.flags.writeable = False
        rows = [block[: len(self._place) - start] for start, block in zip(starts, self._blocks, strict=True)]
        for some, saved in zip(rows, self._saved, strict=True):
            saved[:] = [*(one for one in saved if one() is not None), ref(some)]
        return {"clients": np.array(list(self._place), np.int64), "rows": rows}

    def restore(self, state: Any) -> None:
        """Takes back what `state` gave.

        Older checkpoints have all rows in one array, a mapping of clients to rows, or the rows of all clients
        [clients, size] and nothing else.
        """
        self._place.clear()
        self._blocks.clear()
        self._saved.clear()
        if isinstance(state, np.ndarray):
            state = {"clients": np.arange(len(state)), "rows": [state]}
        elif "clients" not in state:
            state = {"clients": np.array([int(client) for client in state], np.int64), "rows": [[*state.values()]]}
        rows = state["rows"] if isinstance(state["rows"], list) else [state["rows"]]
        for client, row in zip(state["clients"].tolist(), chain.from_iterable(rows), strict=True):
            self[client][:] = row
