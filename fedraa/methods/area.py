"""AREA: the model is the mean of the clients' last models (Iakovidou, Kim 2024).

Start: y_i <- theta for every client i
When w of client i arrives:
    S <- S + w - y_i;  y_i <- w
    after every K updates:  theta <- theta + S / N;  S <- 0

Source: the first author's simulator and the abstract of the paper.

Read next: methods/ca2fl.py (the last delta of every client), server/async_server.py (the server).
"""

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from fedraa.composition.method import PLAIN_SGD, Method, PaperSettings
from fedraa.composition.registry import register
from fedraa.messages import Index, Vector
from fedraa.methods.fedbuff import Buffered
from fedraa.numbers import Count
from fedraa.server.async_rule import ASYNC_RULE, ApplyResult, AsyncModel, ClientUpdate
from fedraa.server.schedule import AsyncSchedule
from fedraa.vectors.client_rows import ClientRows
from fedraa.vectors.delta_view import DeltaView


@ASYNC_RULE.register("area")
@dataclass
class Area(Buffered):
    """AREA (Iakovidou, Kim 2024): every `size` updates, theta <- the mean over all N clients of y_i.

    y_i is the model that client i trained last, at first the initial model. With submodels, an update replaces y_i on
    the coordinates that it covers. The mean keeps the last model of a quarantined client.

    Two details differ from the authors' simulator. There, a client keeps y_i and sends w - y_i. It then receives the
    model from before its own update. Here, a client sends w, and the server keeps y_i. The client then receives the
    model after its own update.
    """

    size: Count = 3

    keeps: ClassVar[str] = "y_i [N, d], their mean [d], initial model [d]"
    state_fields: ClassVar[tuple[str, ...]] = ("_initial", "_rows", "_mean")

    def start(self, model: AsyncModel) -> None:
        super().start(model)
        self._initial = model.params.copy()
        self._rows = ClientRows(len(model.params), model.clients, self._initial.copy)
        # Double precision limits the rounding errors, which add up over all updates.
        self._mean = self._initial.astype(np.float64)

    def apply_update(self, update: ClientUpdate, model: AsyncModel) -> ApplyResult:
        row = self._rows[update.client]

        def replace_piece(place: Index | slice, trained: Vector) -> None:
            self._mean[place] += (trained.astype(np.float64) - row[place]) / model.clients
            row[place] = trained

        DeltaView(update.coordinates, update.new).feed_consumers(replace_piece)
        full = self._count_update()
        if full:
            model.params[:] = self._mean
        return ApplyResult(1 / model.clients, full)

    def memory(self, size: int, clients: int) -> int:
        return size * (4 * clients + 12)


register(
    Method(
        name="area",
        paper="Iakovidou, Kim 2024",
        note="the server, not the client, keeps the last model of a client",
        formula="`theta ← mean of all clients' last models`, every K updates.",
        when="Clients with very different data and any delays: each client has the weight 1/N, however fast it is.",
        local=PLAIN_SGD,
        update=Area(),
        schedule=AsyncSchedule(),
        paper_settings=PaperSettings(
            source="first author's code, MNIST; its rate is .1 times a client's share of the data, .01 for 10 clients",
            values={"lr": 0.01, "momentum": 0.0, "local_steps": 100, "batch_size": 32, "buffer_size": 3},
        ),
    )
)
