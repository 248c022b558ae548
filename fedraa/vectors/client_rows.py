"""A row of numbers for each client. It is created when the client is first used."""

from collections.abc import Callable, Iterator
from itertools import chain
from tempfile import TemporaryFile
from typing import Any
from weakref import ref

import numpy as np

from fedraa.messages import State, Vector

# Maximum number of bytes of rows in memory. Memory-mapped files contain the other rows.
IN_MEMORY = 2**30
BLOCK_BYTES = 2**24


class ClientRows:
    """A float32 row [size] for each client that was used.

    Up to `in_memory` bytes of rows are in memory. Memory-mapped files contain the other rows. A saved state refers to
    the same memory. Before a row changes, its block is copied, so the saved state stays the same.
    """

    def __init__(self, size: int, clients: int, new: Callable[[], Vector], in_memory: int = IN_MEMORY) -> None:
        self._size = size
        self.clients = clients
        self._new = new
        self._place: dict[int, int] = {}
        self._blocks: list[Any] = []
        # For each block, weak references to the arrays in saved states that use its memory.
        self._saved: list[list[ref[Any]]] = []
        self._each = max(1, min(clients, BLOCK_BYTES // max(1, 4 * size)))
        self._in_memory = max(1, in_memory // (4 * size * self._each + 1))

    def __len__(self) -> int:
        return len(self._place)

    def __getitem__(self, client: int) -> Vector:
        """Return a writable view of a client's row. Create the row if it is missing."""
        place = self._place.get(client)
        if place is None:
            place = self._place[client] = len(self._place)
            if place == len(self._blocks) * self._each:
                self._blocks.append(self._allocate_block(len(self._blocks)))
                self._saved.append([])
            self._find_writable_row(place)[:] = self._new()
        return self._find_writable_row(place)

    def __iter__(self) -> Iterator[int]:
        """Iterate over the clients in the order in which their rows were created."""
        return iter(self._place)

    def __contains__(self, client: int) -> bool:
        return client in self._place

    def peek_row(self, client: int) -> Vector:
        """Return a client's row for reading. Return the initial values for a client without a row."""
        if client not in self._place:
            return self._new()
        return self._find_row(self._place[client])

    def sum(self, piece: slice) -> Vector:
        """Return the sum of the rows of all clients on one chunk. Rows are added in the order of the clients' numbers.

        NumPy's sum over an array [N, size] has the same bits.
        """
        total = np.zeros(piece.stop - piece.start, np.float32)
        for client in sorted(self._place):
            total += self._find_row(self._place[client])[piece]
        return total

    def _find_row(self, place: int) -> Vector:
        row: Vector = self._blocks[place // self._each][place % self._each]
        return row

    def _find_writable_row(self, place: int) -> Vector:
        """Return a writable row. If a saved state uses the row's block, copy the block first."""
        number = place // self._each
        block = self._blocks[number]
        if not block.flags.writeable:
            if any(saved() is not None for saved in self._saved[number]):
                self._blocks[number] = self._allocate_block(number)
                self._blocks[number][:] = block
                self._saved[number] = []
            else:
                block.flags.writeable = True
        return self._find_row(place)

    def _allocate_block(self, number: int) -> Any:
        """Return uninitialised memory for a block.

        If the rows in memory already take `in_memory` bytes, the memory of this block is mapped to a file.
        """
        shape = (self._each, self._size)
        if number < self._in_memory:
            return np.empty(shape, np.float32)
        # The system deletes the file when no array uses it.
        with TemporaryFile() as file:
            file.truncate(4 * self._each * self._size)
            return np.memmap(file, np.float32, "r+", shape=shape)

    def state(self) -> State:
        """Return the clients in the order in which their rows were created, and views of the rows."""
        starts = range(0, len(self._place), self._each)
        for block in self._blocks:
            block.flags.writeable = False
        rows = [block[: len(self._place) - start] for start, block in zip(starts, self._blocks, strict=True)]
        for view, saved in zip(rows, self._saved, strict=True):
            saved[:] = [*(one for one in saved if one() is not None), ref(view)]
        return {"clients": np.array(list(self._place), np.int64), "rows": rows}

    def restore(self, state: State) -> None:
        self._place.clear()
        self._blocks.clear()
        self._saved.clear()
        rows = chain.from_iterable(state["rows"])
        for client, row in zip(state["clients"].tolist(), rows, strict=True):
            self[client][:] = row
