"""MR.AsyncFL: a client's new model replaces its last one in a weighted mean (TMLR submission 8556).

Start: y_i <- theta, c_i <- 1/N for every client i
When w of client i arrives:
    theta <- gamma * theta + (1 - gamma) * w + gamma * c_i * (w - y_i)
    c_j <- gamma * c_j for every client j;  c_i <- c_i + 1 - gamma;  y_i <- w

Source: a transcription of the paper that is not by the authors. Its three forms of the update agree.

Read next: methods/fedasync.py (the update without its last term), methods/area.py (equal weights c_i).
"""

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from fedraa.composition.method import PLAIN_SGD, Method, PaperSettings
from fedraa.composition.registry import register
from fedraa.messages import Index, Vector
from fedraa.numbers import UpToOne
from fedraa.server.async_rule import ASYNC_RULE, ApplyResult, AsyncModel, AsyncRule, ClientUpdate
from fedraa.server.schedule import AsyncSchedule
from fedraa.vectors.client_rows import ClientRows
from fedraa.vectors.delta_view import DeltaView


@ASYNC_RULE.register("model-replacement")
@dataclass
class ModelReplacement(AsyncRule):
    """MR.AsyncFL (TMLR submission 8556): theta = sum over all clients of c_i * y_i, where sum c_i = 1.

    y_i is the model that client i trained last, at first the initial model. An update of client i changes its weight
    c_i to gamma * c_i + 1 - gamma, and every other c_j to gamma * c_j. With gamma = 1 the weights stay 1/N, as in AREA
    with a buffer of one update.

    With fragments, each fragment has its own weights, and an update replaces y_i on the coordinates of its fragment.
    The sum then does not hold for coordinates that several fragments share. If a submodel is drawn for every task, all
    coordinates share the weights c_i, and the sum holds only for coordinates that every update covers.

    In the paper a client receives the model from before its own update, in fedraa the model after it. The paper's
    option to restart clients that are 20 versions behind is not implemented.

    Attributes:
        gamma: Weight of the current model.
    """

    gamma: UpToOne = 0.8

    keeps: ClassVar[str] = "y_i [N, d], c_i [M, N], initial model [d]"
    state_fields: ClassVar[tuple[str, ...]] = ("_initial", "_rows", "_weights")

    def start(self, model: AsyncModel) -> None:
        self._initial = model.params.copy()
        self._rows = ClientRows(len(model.params), model.clients, self._initial.copy)
        self._weights = np.full((model.fragments, model.clients), 1 / model.clients)

    def apply_update(self, update: ClientUpdate, model: AsyncModel) -> ApplyResult:
        weights = self._weights[update.fragment]
        weights *= self.gamma
        old_weight = np.float32(self.gamma)
        replaced_weight = np.float32(weights[update.client])
        weights[update.client] += 1 - self.gamma
        new_weight = np.float32(weights[update.client])
        row = self._rows[update.client]

        def replace_piece(place: Index | slice, trained: Vector) -> None:
            params = old_weight * model.params[place]
            params += new_weight * trained
            params -= replaced_weight * row[place]
            model.params[place] = params
            row[place] = trained

        DeltaView(update.coordinates, update.new).feed_consumers(replace_piece)
        return ApplyResult(float(weights[update.client]))

    def memory(self, size: int, clients: int) -> int:
        return size * (4 * clients + 4)


register(
    Method(
        name="mr-asyncfl",
        paper="TMLR submission 8556",
        note="clients are not restarted, and a client receives the model after its own update",
        formula="`theta ← gamma · theta + (1 − gamma) · w + gamma · c_i · (w − y_i)`, the sum of all c_i · y_i.",
        when="As fedasync, if the data of clients differ: a client's new model replaces its old one in the mean.",
        local=PLAIN_SGD,
        update=ModelReplacement(),
        schedule=AsyncSchedule(),
        paper_settings=PaperSettings(
            source="transcription of the paper, CIFAR-10, IID",
            values={"update.gamma": 0.8, "momentum": 0.0},
            unstated="the learning rate, which its theory sets to 1/sqrt(T)",
        ),
    )
)
