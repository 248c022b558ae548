"""Ringleader ASGD: every client has the same weight, however fast it is (Maranjyan, Richtarik 2026).

First phase of a round, until every client has reported:
    G_i += delta of client i; b_i += 1;  client i trains again from the model that it received last
Second phase:
    theta <- theta + server_lr / N * sum over i of G_i / b_i, once per client, at its next update
    an update of a client that already made its step counts for the next round

Read next: server/async_rule.py (the interface of a rule), server/async_server.py (its caller).
"""

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from fedraa.components.state import Stateful
from fedraa.composition.method import PLAIN_SGD, Method, PaperSettings
from fedraa.composition.registry import register
from fedraa.messages import Index, Vector
from fedraa.numbers import Positive
from fedraa.server.async_rule import ASYNC_RULE, ApplyResult, AsyncModel, AsyncRule, ClientUpdate
from fedraa.server.schedule import AsyncSchedule
from fedraa.vectors.chunked import map_chunks, step_along
from fedraa.vectors.client_rows import ClientRows
from fedraa.vectors.delta_view import DeltaView


class SumTable(Stateful):
    """The sums G_i [d] and the counts b_i of the clients' deltas, and the total sum_i G_i / b_i [d].

    G_i uses no memory before client i first reports.
    """

    state_fields: ClassVar[tuple[str, ...]] = ("rows", "counts", "total")

    def __init__(self, size: int, clients: int) -> None:
        self.rows = ClientRows(size, clients, lambda: np.zeros(size, np.float32))
        self.counts: dict[int, int] = {}
        # The rounding errors of all additions and subtractions remain in the total. Double precision keeps them small.
        self.total = np.zeros(size)

    def add(self, client: int, change: DeltaView) -> int:
        """Add a delta of the client. Return the number of the client's deltas in the table."""
        row = self.rows[client]
        before = self.counts.get(client, 0)

        def forget_piece(piece: slice) -> None:
            self.total[piece] -= row[piece].astype(np.float64) / before

        def add_piece(place: Index | slice, delta: Vector) -> None:
            row[place] += delta

        def remember_piece(piece: slice) -> None:
            self.total[piece] += row[piece].astype(np.float64) / (before + 1)

        if before:
            map_chunks(len(row), forget_piece)
        change.feed_consumers(add_piece)
        map_chunks(len(row), remember_piece)
        self.counts[client] = before + 1
        return before + 1

    def empty(self) -> "SumTable":
        """Return an empty table for the same number of clients."""
        return SumTable(len(self.total), self.rows.clients)


@ASYNC_RULE.register("ringleader")
@dataclass
class Ringleader(AsyncRule):
    """Ringleader ASGD (Maranjyan, Richtarik 2026): theta += server_lr * v, v = 1/N sum_i G_i / b_i, N times a round.

    G_i is the sum of client i's deltas in the round, and b_i is the number of these deltas. In the first phase of a
    round, the server only adds up deltas until every client has reported. Meanwhile a client that has reported trains
    again from the model that it received. The update of the last client makes the first step.

    In the second phase, the next update of each other client makes one step, and the client receives the new model. A
    client that reports again after its step continues from the model that it received, and its delta counts for the
    next round. The staleness is at most 2N - 2.

    In the paper a delta is one gradient. In fedraa it is the result of a client's local steps.
    """

    server_lr: Positive = 1.0

    keeps: ClassVar[str] = "two tables of sums [N, d]"
    needs_all_clients: ClassVar[bool] = True
    state_fields: ClassVar[tuple[str, ...]] = ("_now", "_next", "_todo", "_gone")

    def start(self, model: AsyncModel) -> None:
        self._now, self._next = (SumTable(len(model.params), model.clients) for _ in range(2))
        # Clients whose step in the second phase is still missing. In the first phase the list is empty.
        self._todo: list[int] = []
        self._gone: set[int] = set()

    def leave(self, client: int) -> None:
        self._gone.add(client)
        if client in self._todo:
            self._record_step(client)

    def apply_update(self, update: ClientUpdate, model: AsyncModel) -> ApplyResult:
        client = update.client
        filling = not self._todo
        if not filling and client not in self._todo:
            return ApplyResult(self._add_to_table(self._next, update, model), False, keep_task=True)
        weight = self._add_to_table(self._now, update, model)
        if filling:
            if len(self._now.counts.keys() | self._gone) < model.clients:
                return ApplyResult(weight, False, keep_task=True)
            self._todo = [other for other in range(model.clients) if other not in self._gone]
        step_along(model.params, self.server_lr / model.clients, self._now.total)
        self._record_step(client)
        return ApplyResult(weight)

    def _record_step(self, client: int) -> None:
        """Record that the client has made its step or has left the run. After the last client, begin the next round."""
        self._todo.remove(client)
        if not self._todo:
            self._now = self._next
            self._next = self._now.empty()

    def _add_to_table(self, table: SumTable, update: ClientUpdate, model: AsyncModel) -> float:
        """Add the delta to the client's sum in the table. Return the weight of the delta in the server's step."""
        count = table.add(update.client, update.change)
        return self.server_lr / (model.clients * count)

    def memory(self, size: int, clients: int) -> int:
        return 2 * size * (4 * clients + 8)


register(
    Method(
        name="ringleader",
        paper="Maranjyan, Richtarik 2026",
        note="any number of local steps (the paper: one)",
        formula=(
            "`theta ← theta + server_lr · mean_i (sum of client i's deltas / their number)`, N steps per round; the "
            "first step waits until all clients have reported."
        ),
        when="Every client should have the same weight, however fast it is.",
        local=PLAIN_SGD,
        update=Ringleader(),
        schedule=AsyncSchedule(),
        paper_settings=PaperSettings(
            source="Maranjyan, Richtarik 2026, MNIST",
            values={"local_steps": 1, "momentum": 0.0, "batch_size": 4},
            unstated="the learning rate, which the paper takes from a sweep",
        ),
    )
)
