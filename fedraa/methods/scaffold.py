"""SCAFFOLD: control variates correct the drift of clients (Karimireddy et al. 2020, Algorithm 1, option II).

Client n, T steps:  w <- w - lr * (g - c_n + c)
    c_n+ = c_n - c + (theta - w) / (T * lr)
Server:
    theta <- theta + server_lr * mean over the cohort of (w - theta)
    c <- c + 1/N * sum over the cohort of (c_n+ - c_n)

Read next: server/round_state.py (the interface of state beside the model), client/gradient_transforms.py (the client's
correction), server/round_server.py (the caller).
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import partial
from types import MappingProxyType
from typing import ClassVar

import numpy as np

from fedraa.aggregation.aggregator import ClientDelta
from fedraa.composition.method import PLAIN_SGD, Method, PaperSettings
from fedraa.composition.registry import register
from fedraa.messages import Extra, ExtraBuffers, Index, LazyBuffer, Mask, Update, Vector
from fedraa.server.round_state import RoundState, RoundStateContext
from fedraa.server.round_update import Mean
from fedraa.submodels.assignment import Assignment
from fedraa.vectors.chunked import add_scaled, borrow_scratch, copy_coordinates, map_chunks
from fedraa.vectors.client_rows import ClientRows
from fedraa.vectors.index_ranges import CoordinateSet, where_of

_NEEDS_SGD = "the control variate uses delta / (lr * steps) as the mean gradient, which is right only for plain SGD"


@dataclass
class ControlVariates(RoundState):
    """SCAFFOLD (Karimireddy et al. 2020), option II, on the coordinates that a client trained.

    Clients step along g - c_i + c. Then c_i+ = c_i - c + (theta - w) / (T_i lr), where T_i is the number of steps of
    client i, and c += (1/N) sum (c_i+ - c_i). All control variates start at 0.
    """

    keeps: ClassVar[str] = "c [d], c_n [N, d]"
    refuses: ClassVar[Mapping[str, str]] = MappingProxyType(
        {
            "momentum": _NEEDS_SGD,
            "local_optimizer": _NEEDS_SGD,
            "clip": _NEEDS_SGD,
            "compress": "for every dropped entry, the control variate would assume a gradient of 0",
            "aggregator": "c is a mean over clients, and a robust aggregator would not bound an attacker's delta in c",
        }
    )
    reads_deltas: ClassVar[bool] = True
    corrects: ClassVar[bool] = True
    extra_buffers: ClassVar[ExtraBuffers] = ExtraBuffers(down=1, up=1)
    state_fields: ClassVar[tuple[str, ...]] = ("_server", "_client", "_change")

    def start(self, run: RoundStateContext) -> None:
        self._server = np.zeros(run.size, np.float32)
        self._clients = run.clients
        self._client = ClientRows(run.size, run.clients, lambda: np.zeros(run.size, np.float32))
        self._change = np.zeros(run.size, np.float32)

    def send(self, client: int, assignment: Assignment) -> Mapping[str, Extra]:
        return {"control": LazyBuffer(partial(self._control_difference, client, where_of(assignment.submodel)))}

    def _control_difference(self, client: int, where: CoordinateSet) -> Vector:
        """Return c - c_i on these coordinates: the control variate of the server minus that of the client.

        The result stays the same while the client's task is in flight.
        """
        control = copy_coordinates(self._server, where)
        if client in self._client:
            row = self._client.peek_row(client)
            if not isinstance(where, slice):
                row = copy_coordinates(row, where)
            add_scaled(control, slice(None), -1.0, row)
        return control

    def receive(self, contribution: ClientDelta, assignment: Assignment, update: Update) -> None:
        row = self._client[contribution.client]
        scale = np.float32(update.steps * contribution.lr)

        def update_piece(place: Index | slice, delta: Vector) -> None:
            by = np.negative(self._server[place], out=borrow_scratch("by", len(delta)))
            by -= np.divide(delta, scale, out=borrow_scratch("times", len(delta)))
            row[place] += by
            self._change[place] += by

        contribution.change.join(update_piece)

    def close(self, params: Vector, delta: Vector, moved: Mask, scale: float) -> None:
        clients = np.float32(self._clients)

        def add_piece(piece: slice) -> None:
            change = self._change[piece]
            self._server[piece] += np.divide(change, clients, out=change)
            change.fill(0)

        map_chunks(len(self._server), add_piece)

    def memory(self, size: int, clients: int) -> int:
        return 4 * size * (clients + 2)


register(
    Method(
        name="scaffold",
        paper="Karimireddy et al. 2020, option II",
        formula=(
            "Clients step along g − c_i + c; `theta ← theta + server_lr · mean delta`; c_i and c follow the mean "
            "gradients of the clients."
        ),
        when="Unequal data, and clients that take part often. It needs twice the traffic of fedavg.",
        local=replace(PLAIN_SGD, control=True),
        update=Mean(auxiliary=ControlVariates()),
        paper_settings=PaperSettings(
            source="Karimireddy et al. 2020",
            values={"momentum": 0.0, "server_lr": 1.0},
            unstated="the local learning rate, which the paper takes from a grid",
        ),
    )
)
