"""The states of the clients' local optimizers, if clients keep them from one task to the next."""

from collections.abc import Mapping, Sequence
from functools import partial
from typing import ClassVar

import numpy as np

from fedraa.components.state import Stateful
from fedraa.messages import EXTRA_PREFIX, Extra, MadeBuffer, Update, Vector
from fedraa.submodels.assignment import Assignment, Mask
from fedraa.vectors.chunked import copy_coordinates
from fedraa.vectors.client_rows import ClientRows
from fedraa.vectors.index_runs import CoordinateSet, where_of


class OptimizerStates(Stateful):
    """A row [d] of each client for each buffer of its optimizer, in the coordinates of the full model.

    A real device keeps its state itself. Here the state travels with tasks and updates, so that any worker can train
    any client, and a resumed run continues with the same state. The state does not count as traffic. A task carries and
    changes only the state of the coordinates that it trains. The other coordinates keep their moments and step counts.

    Args:
        size: Parameters of the full model, d.
        clients: Number of clients.
        names: The buffers of the optimizer.
    """

    state_fields: ClassVar[tuple[str, ...]] = ("_rows",)

    def __init__(self, size: int, clients: int, names: Sequence[str]) -> None:
        self._rows = {
            EXTRA_PREFIX + name: ClientRows(size, clients, lambda: np.zeros(size, np.float32)) for name in names
        }

    @property
    def names(self) -> tuple[str, ...]:
        """The names of the buffers that tasks and updates carry."""
        return tuple(self._rows)

    def send(self, client: int, assignment: Assignment) -> Mapping[str, Extra]:
        """Return the optimizer's buffers [k] for the client's task. They are 0 outside the mask."""
        where = where_of(assignment.submodel)
        return {name: MadeBuffer(partial(self._cut_state, name, client, where, assignment.mask)) for name in self._rows}

    def _cut_state(self, name: str, client: int, where: CoordinateSet, mask: Mask | None) -> Vector:
        """Return a copy of the client's state. It does not change while the client's task is in flight.

        Args:
            name: The buffer.
            client: The client.
            where: The coordinates [k] of the submodel.
            mask: True for trained coordinates [k], None if all are.
        """
        buffer: Vector = copy_coordinates(self._rows[name].peek_row(client), where)
        if mask is not None:
            buffer[~mask] = 0.0
        return buffer

    def receive(self, assignment: Assignment, update: Update) -> None:
        """Store the state that a client has after its task."""
        where = assignment.where
        for name, rows in self._rows.items():
            rows[update.client][where] = assignment.trained(update.extras[name])
