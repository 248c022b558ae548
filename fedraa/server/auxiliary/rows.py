"""What a method keeps of each client: a row that is made when the client first appears."""

from collections.abc import Callable, Iterator
from itertools import chain
from tempfile import TemporaryFile
from typing import Any

import numpy as np

from fedraa.messages import State, Vector

IN_MEMORY = 2**30  # bytes of rows; beyond, further ones are in a file that is mapped
BLOCK_BYTES = 2**24


class ClientRows:
    """A float32 row [size] for each client that has appeared, in memory up to `in_memory` bytes."""

    def __init__(self, size: int, clients: int, new: Callable[[], Vector], in_memory: int = IN_MEMORY) -> None:
        self._size, self.clients, self._new = size, clients, new
        self._place: dict[int, int] = {}
        self._blocks: list[Any] = []
        self._each = max(1, min(clients, BLOCK_BYTES // max(1, 4 * size)))
        self._in_memory = max(1, in_memory // (4 * size * self._each + 1))

    def __len__(self) -> int:
        """Clients that have appeared."""
        return len(self._place)

    def __getitem__(self, client: int) -> Vector:
        """The row of a client, as a view."""
        place = self._place.get(client)
        if place is None:
            place = self._place[client] = len(self._place)
            if place == len(self._blocks) * self._each:
                self._blocks.append(self._block())
            self._row(place)[:] = self._new()
        return self._row(place)

    def __iter__(self) -> Iterator[int]:
        """The clients that have appeared, in that order."""
        return iter(self._place)

    def __contains__(self, client: int) -> bool:
        """Whether the client has appeared."""
        return client in self._place

    def put(self, client: int, row: Vector) -> None:
        """The client's row from now on."""
        self[client][:] = row

    def peek(self, client: int) -> Vector:
        """The row of a client, or what a new one would be; nothing is made."""
        return self[client] if client in self._place else self._new()

    def sum(self) -> Vector:
        """The sum [size] of the rows of all clients, 0 for those that have not appeared, in the order of their numbers.

        Bit for bit what NumPy makes of one array of all.
        """
        total = np.zeros(self._size, np.float32)
        for client in sorted(self._place):
            total += self[client]
        return total

    def _row(self, place: int) -> Vector:
        row: Vector = self._blocks[place // self._each][place % self._each]
        return row

    def _block(self) -> Any:
        shape = (self._each, self._size)
        if len(self._blocks) < self._in_memory:
            return np.empty(shape, np.float32)
        with TemporaryFile() as file:  # which goes when nobody maps it any more
            file.truncate(4 * self._each * self._size)
            return np.memmap(file, np.float32, "r+", shape=shape)

    def state(self) -> State:
        """The clients, in the order in which they appeared, and their rows, as views of the blocks that they are in."""
        starts = range(0, len(self._place), self._each)
        rows = [block[: len(self._place) - start] for start, block in zip(starts, self._blocks, strict=True)]
        return {"clients": np.array(list(self._place), np.int64), "rows": rows}

    def restore(self, state: Any) -> None:
        """Takes back what `state` gave.

        Older checkpoints have all rows in one array, a mapping of clients to rows, or the rows of all clients
        [clients, size] and nothing else.
        """
        self._place.clear()
        self._blocks.clear()
        if isinstance(state, np.ndarray):
            state = {"clients": np.arange(len(state)), "rows": [state]}
        elif "clients" not in state:
            state = {"clients": np.array([int(client) for client in state], np.int64), "rows": [[*state.values()]]}
        rows = state["rows"] if isinstance(state["rows"], list) else [state["rows"]]
        for client, row in zip(state["clients"].tolist(), chain.from_iterable(rows), strict=True):
            self[client][:] = row
