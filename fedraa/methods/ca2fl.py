"""CA2FL: a buffer of deltas, corrected by the last delta of every client (Wang et al. 2024, Algorithm 2).

When delta of client i arrives:
    buffer += delta - h_i
    remember delta as the next h_i
    if the buffer holds K deltas:
        theta <- theta + server_lr * (mean over all N clients of h_i + buffer / K)
        h_i <- the last delta of every client in the buffer; buffer = 0

Read next: methods/fedbuff.py (the buffer without the correction), server/async_server.py (the server).
"""

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from fedraa.components.state import Stateful
from fedraa.composition.method import PLAIN_SGD, Method, PaperSettings
from fedraa.composition.registry import register
from fedraa.messages import Index, Vector
from fedraa.methods.fedbuff import Buffered
from fedraa.numbers import Positive
from fedraa.server.async_rule import ASYNC_RULE, ApplyResult, AsyncModel, ClientUpdate
from fedraa.server.schedule import AsyncSchedule
from fedraa.vectors.chunked import map_chunks
from fedraa.vectors.client_rows import ClientRows
from fedraa.vectors.delta_view import DeltaView


class DeltaCache(Stateful):
    """The last delta [d] of every client, and the mean [d] of these deltas over all clients.

    The delta of a client that has never reported counts as 0 and uses no memory.
    """

    state_fields: ClassVar[tuple[str, ...]] = ("rows", "mean")

    def __init__(self, size: int, clients: int) -> None:
        self.rows = ClientRows(size, clients, lambda: np.zeros(size, np.float32))
        # Double precision limits the rounding errors, which add up over all updates.
        self.mean = np.zeros(size)
        self._clients = clients

    def put(self, client: int, change: DeltaView) -> None:
        """Store a client's new delta. Coordinates outside of `change` keep their stored values."""
        row = self.rows[client]

        def put_piece(place: Index | slice, delta: Vector) -> None:
            self.mean[place] += (delta.astype(np.float64) - row[place]) / self._clients
            row[place] = delta

        change.feed_consumers(put_piece)


@ASYNC_RULE.register("ca2fl")
@dataclass
class CA2FL(Buffered):
    """CA2FL (Wang et al. 2024, Algorithm 2): theta += server_lr * v every `size` updates, whatever their staleness.

    v = mean over all N clients of h_i + 1/size * sum over the updates in the buffer of (delta - h_i). Then h_i becomes
    the last delta of each client in the buffer. All updates of a buffer use the h_i from before the buffer. h_i starts
    at 0, so the first step equals that of FedBuff. Keep the clients' learning rate constant, because h_i depends on it.
    The mean keeps the h_i of a quarantined client.
    """

    server_lr: Positive = 1.0

    keeps: ClassVar[str] = "h_i [N, d], buffer [d]"
    state_fields: ClassVar[tuple[str, ...]] = ("_cache", "_pending", "_sum")

    def start(self, model: AsyncModel) -> None:
        super().start(model)
        self._cache = DeltaCache(len(model.params), model.clients)
        # For each client in the buffer: its last delta, which becomes h_i in the cache when the buffer is full.
        self._pending: dict[int, Vector] = {}
        self._sum = np.zeros(len(model.params), np.float32)

    def apply_update(self, update: ClientUpdate, model: AsyncModel) -> ApplyResult:
        before = self._cache.rows.peek_row(update.client)
        if update.client not in self._pending:
            self._pending[update.client] = before.copy()
        pending = self._pending[update.client]

        def add_piece(place: Index | slice, delta: Vector) -> None:
            self._sum[place] += delta
            self._sum[place] -= before[place]
            pending[place] = delta

        update.change.feed_consumers(add_piece)
        full = self._count_update()
        if full:
            self._flush_buffer(model.params)
        return ApplyResult(self.server_lr / self.size, full)

    def _flush_buffer(self, params: Vector) -> None:
        def step_piece(piece: slice) -> None:
            direction = self._cache.mean[piece] + self._sum[piece] / self.size
            params[piece] += (self.server_lr * direction).astype(np.float32)

        map_chunks(len(params), step_piece)
        for client, row in self._pending.items():
            self._cache.put(client, DeltaView(slice(None), row))
        self._pending = {}
        self._sum.fill(0)

    def memory(self, size: int, clients: int) -> int:
        return size * (4 * clients + 4 * min(self.size, clients) + 12)


register(
    Method(
        name="ca2fl",
        paper="Wang et al. 2024, Algorithm 2",
        formula=(
            "`theta ← theta + server_lr · (mean of all h_i + mean over the buffer of (delta − h_i))`, every K updates; "
            "h_i is the last delta of client i."
        ),
        when="Clients with very different data, some of which report rarely. The server keeps a delta of each client.",
        local=PLAIN_SGD,
        update=CA2FL(),
        schedule=AsyncSchedule(),
        paper_settings=PaperSettings(
            source="Wang et al. 2024",
            values={"buffer_size": 10, "momentum": 0.0},
            unstated="the learning rates, which the paper takes from a grid",
        ),
    )
)
