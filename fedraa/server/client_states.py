"""Values that clients keep from one task to the next, such as an optimizer's state or a personal model."""

from collections.abc import Mapping, Sequence
from functools import partial
from typing import ClassVar

import numpy as np

from fedraa.client.kept_buffer import KeptBuffer
from fedraa.components.state import Stateful
from fedraa.errors import InputError
from fedraa.messages import Extra, Index, LazyBuffer, State, Update, Vector
from fedraa.submodels.assignment import Assignment
from fedraa.vectors.chunked import copy_coordinates
from fedraa.vectors.client_rows import ClientRows
from fedraa.vectors.index_ranges import where_of


class ClientStates(Stateful):
    """The kept values of all clients: one row per client in each kept buffer.

    A real device would keep its values itself. Here tasks and updates carry them, so that any worker can train any
    client. This does not count as traffic. Only the values of trained coordinates change.

    Args:
        buffers: The declarations of the buffers.
        params: The initial model [d].
        clients: Number of clients.

    Raises:
        InputError: Two buffers have the same name.
    """

    state_fields: ClassVar[tuple[str, ...]] = ("_rows",)

    def __init__(self, buffers: Sequence[KeptBuffer], params: Vector, clients: int) -> None:
        self._buffers = {buffer.key: buffer for buffer in buffers}
        if len(self._buffers) < len(buffers):
            names = [buffer.name for buffer in buffers]
            twice = next(name for name in names if names.count(name) > 1)
            raise InputError("kept", f"clients keep two buffers of the name {twice}", hint="choose another name")
        self._params = params
        self._rows = {
            key: ClientRows(buffer.count(len(params)), clients, partial(_new_row, buffer, len(params)))
            for key, buffer in self._buffers.items()
        }
        # For each buffer with only some coordinates: an array [d] with the position of each coordinate in a client's
        # row. The position -1 means that the coordinate has no value.
        self._places: dict[str, Index] = {}
        for key, buffer in self._buffers.items():
            if buffer.coordinates is not None:
                self._places[key] = np.full(len(params), -1)
                self._places[key][buffer.coordinates] = np.arange(len(buffer.coordinates))

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the extra buffers that tasks and updates carry."""
        return tuple(self._buffers)

    def send(self, client: int, assignment: Assignment) -> Mapping[str, Extra]:
        """Return the extra buffers of the client's task.

        Outside of the task's mask, a buffer that starts from the received weights has NaN, and other buffers have 0. If
        the assignment has `keeps_rest`, a personal model keeps its values outside of the mask.
        """
        return {key: LazyBuffer(partial(self._cut_row, key, client, assignment)) for key in self._buffers}

    def receive(self, assignment: Assignment, update: Update) -> None:
        """Store the client's state after its task."""
        for key, buffer in self._buffers.items():
            row = self._rows[key][update.client]
            values = update.extras[key]
            if buffer.size is not None:
                row[:] = values
            elif buffer.coordinates is None:
                row[assignment.where] = assignment.trained(values)
            else:
                chosen, places = self._shared_positions(key, assignment)
                trained = slice(None) if assignment.mask is None else assignment.mask[chosen]
                row[places[trained]] = values[trained]

    def copy_rows(self, clients: Sequence[int]) -> State:
        """Return copies of the clients' rows. Evaluations of personal models use them.

        The key `clients` holds the numbers [n] of the clients that have trained. The key of each buffer holds their
        rows [n, size].
        """
        present = [client for client in clients if all(client in rows for rows in self._rows.values())]
        copies = {
            key: np.stack([rows.peek_row(client) for client in present]) for key, rows in self._rows.items() if present
        }
        return {"clients": np.array(present, np.int64), **copies}

    def _cut_row(self, key: str, client: int, assignment: Assignment) -> Vector:
        """Return a copy of the client's values on the coordinates of a task.

        In a buffer that starts from the received weights, NaN marks coordinates that the client has never trained.
        """
        buffer = self._buffers[key]
        row = self._rows[key].peek_row(client)
        if buffer.size is not None:
            return row.copy()
        where = where_of(assignment.submodel)
        mask = assignment.mask
        if buffer.coordinates is None:
            values: Vector = copy_coordinates(row, where)
        else:
            chosen, places = self._shared_positions(key, assignment)
            values = row[places]
            if mask is not None:
                mask = mask[chosen]
        if buffer.start == "model":
            initial = copy_coordinates(self._params, where)
            if buffer.coordinates is not None:
                initial = initial[chosen]
            values = np.where(np.isnan(values), initial, values)
        if mask is None:
            return values
        if buffer.start == "received":
            values[~mask] = np.nan
        elif not (assignment.keeps_rest and buffer.start == "model"):
            values[~mask] = 0.0
        return values

    def _shared_positions(self, key: str, assignment: Assignment) -> tuple[Index, Index]:
        """Return the positions, in the submodel and in the buffer, of the coordinates that both have."""
        places = self._places[key]
        if assignment.submodel.index is not None:
            places = places[assignment.submodel.index]
        chosen = np.flatnonzero(places >= 0)
        return chosen, places[chosen]


def _new_row(buffer: KeptBuffer, parameters: int) -> Vector:
    """Return the row of a client before its first task.

    If `buffer.start` is "model", NaN stands for the value in the initial model. If it is "received", NaN stands for the
    value that the client receives with its first task.
    """
    start = np.nan if isinstance(buffer.start, str) else buffer.start
    return np.full(buffer.count(parameters), start, np.float32)
