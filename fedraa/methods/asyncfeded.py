"""AsyncFedED: staleness measured by how far the model has moved (Wang et al. 2022).

When delta = w - theta_sent arrives:
    r = ||theta - theta_sent|| / ||delta||
    theta <- theta + server_lr / (r + epsilon) * delta

Read next: server/async_rule.py (the interface of a rule), server/async_server.py (its caller).
"""

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from fedraa.composition.method import PLAIN_SGD, Method, PaperSettings
from fedraa.composition.registry import register
from fedraa.messages import Vector
from fedraa.numbers import Positive
from fedraa.server.async_rule import ASYNC_RULE, ApplyResult, AsyncModel, AsyncRule, ClientUpdate
from fedraa.server.schedule import AsyncSchedule
from fedraa.vectors.chunked import SUM_BLOCK, add_scaled, borrow_scratch, map_chunks, ordered_sum, subtract_chunk
from fedraa.vectors.index_ranges import global_slices


@ASYNC_RULE.register("asyncfeded")
@dataclass
class AsyncFedED(AsyncRule):
    """AsyncFedED (Wang et al. 2022): theta += server_lr / (r + epsilon) * delta.

    r = |theta - sent| / |delta| measures how far the model has moved since it was sent. A delta of 0 gets the weight 0.
    The paper also adapts the number of local epochs. This rule does not.

    Attributes:
        server_lr: Length of the step.
        epsilon: Number that is added to the divisor. With r = 0, an update has the weight server_lr / epsilon.
    """

    server_lr: Positive = 1.0
    epsilon: Positive = 1.0

    needs_values: ClassVar[bool] = True
    bounded_by_weight: ClassVar[bool] = True
    state_fields: ClassVar[tuple[str, ...]] = ()

    def apply_update(self, update: ClientUpdate, model: AsyncModel) -> ApplyResult:
        new, sent = update.new, update.sent

        def squared_lengths(piece: slice) -> tuple[float, float]:
            was = sent[piece]
            went = _sum_squares(subtract_chunk(new[piece], was))
            gone: Vector = borrow_scratch("gone", len(was))
            for place, part in global_slices(update.coordinates, piece):
                np.subtract(model.params[place], was[part], out=gone[part])
            return went, _sum_squares(gone)

        sums = map_chunks(len(new), squared_lengths)
        length, gone = (ordered_sum([piece[at] for piece in sums]) ** 0.5 for at in (0, 1))
        if length == 0:
            return ApplyResult(0.0)
        weight = self.server_lr / (gone / length + self.epsilon)
        add_scaled(model.params, update.coordinates, weight, new, sent)
        return ApplyResult(weight)


def _sum_squares(piece: Vector) -> float:
    """Return the sum of squares. Each block of SUM_BLOCK values is summed in float32.

    This takes half the time of sums in float64, and is precise enough for a ratio.
    """
    end = len(piece) - len(piece) % SUM_BLOCK
    rows = piece[:end].reshape(-1, SUM_BLOCK)
    tail = piece[end:]
    return float(np.einsum("ij,ij->i", rows, rows).sum(dtype=np.float64) + np.einsum("i,i->", tail, tail))


register(
    Method(
        name="asyncfeded",
        paper="Wang et al. 2022",
        note="only the server step of the paper: the number of local epochs is not adapted",
        formula="`theta ← theta + server_lr / (r + epsilon) · delta`, r = |theta − sent| / |delta|.",
        when="Staleness should be measured by how far the model has moved, not counted.",
        local=PLAIN_SGD,
        update=AsyncFedED(),
        schedule=AsyncSchedule(),
        paper_settings=PaperSettings(source="Wang et al. 2022", unstated="everything except its rule"),
    )
)
