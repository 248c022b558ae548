"""HeLoCo: turn stale updates towards the server's momentum, tensor by tensor (Al Asif et al. 2026).

Send to a client: theta + server_lr * beta * m
When delta = w - sent arrives, for each tensor b with c = cos(delta_b, m_b):
    conf = |delta_b| / (|delta_b| + kappa * |m_b|);  u, v = the unit vectors of delta_b and m_b
    if c >= min_cosine:  g_b = delta_b
    else if c < 0:       g_b = delta_b - s * c * |delta_b| * v,  s = min(shrink * -c * conf, max_shrink)
    else:                g_b = |delta_b| * unit((1 - l) * u + l * v),  l = min(turn * (1 - c) * conf, 1)
    m <- beta * m + (1 - beta) * rho * g
    theta <- theta + server_lr * (rho * g + beta * m)

Source: two implementations by an author's company, which cite the equations, and a transcription of the paper. All
three agree.

Read next: methods/fedbuff.py (server momentum without the correction), server/async_rule.py (the interface of a rule).
"""

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise
from math import prod, sqrt
from typing import Annotated, ClassVar

import numpy as np
from pydantic import Field

from fedraa.composition.method import PLAIN_SGD, Method, PaperSettings
from fedraa.composition.registry import register
from fedraa.messages import Index, Shapes, Vector
from fedraa.numbers import Decay, NotNegative, Positive
from fedraa.server.async_rule import ASYNC_RULE, ApplyResult, AsyncModel, AsyncRule, ClientUpdate
from fedraa.server.schedule import AsyncSchedule
from fedraa.vectors.chunked import add_scaled, copy_coordinates, scalar_product
from fedraa.vectors.index_ranges import CoordinateSet

# The authors' epsilon. Norms below epsilon count as 0. The code also adds epsilon to the divisor of `conf` (see above).
EPSILON = 1e-8


@ASYNC_RULE.register("heloco")
@dataclass
class HeLoCo(AsyncRule):
    """HeLoCo (Al Asif et al. 2026): Nesterov momentum along deltas that agree with the momentum.

    The rule compares the delta of each tensor with the tensor's momentum. If their cosine is at least `min_cosine`, the
    delta is unchanged. If the cosine is negative, the part of the delta against the momentum shrinks. Otherwise the
    delta turns towards the momentum and keeps its length. The first update is unchanged, because the momentum is 0.

    Clients receive the look-ahead model theta + server_lr * beta * m, and a delta is the difference from that model.
    With submodels, only the coordinates that the update covers count and change. The authors' code can also correct an
    update as one vector; fedraa cannot.

    Attributes:
        server_lr: Length of the step.
        beta: Decay of the momentum, mu in the paper.
        min_cosine: A delta stays unchanged if its cosine with the momentum is at least this value.
        shrink: Strength k_s by which the part of a delta against the momentum shrinks.
        turn: Strength k_d by which a delta turns towards the momentum.
        kappa: Weight of the momentum's length in `conf`. Larger values make corrections smaller.
        max_shrink: Largest share by which the part of a delta against the momentum shrinks.
        rho: Weight of an update. The default is that of the authors' code. The paper recommends 1/sqrt(K) for K
            clients. With unequal data, the accuracy then swings less.
    """

    server_lr: Positive = 0.7
    beta: Decay = 0.9
    min_cosine: Annotated[float, Field(ge=-1, le=1)] = 0.2
    shrink: NotNegative = 0.5
    turn: NotNegative = 1.0
    kappa: NotNegative = 3.0
    max_shrink: NotNegative = 0.5
    rho: Positive = 1.0

    keeps: ClassVar[str] = "m [d]"
    state_fields: ClassVar[tuple[str, ...]] = ("_m",)

    def start(self, model: AsyncModel) -> None:
        self._m = np.zeros(len(model.params), np.float32)

    def look_ahead(self, values: Vector, where: CoordinateSet) -> None:
        add_scaled(values, slice(None), self.server_lr * self.beta, copy_coordinates(self._m, where))

    def apply_update(self, update: ClientUpdate, model: AsyncModel) -> ApplyResult:
        for place, piece in split_by_tensor(model.tensors, update.where, len(update.new)):
            delta: Vector = update.new[piece] - update.sent[piece]
            m = self._m[place]
            of_delta, of_momentum = self.find_factors(delta, m)
            step = np.float32(self.rho * of_delta) * delta + np.float32(self.rho * of_momentum) * m
            new_m = np.float32(self.beta) * m + np.float32(1 - self.beta) * step
            self._m[place] = new_m
            model.params[place] += np.float32(self.server_lr) * (step + np.float32(self.beta) * new_m)
        return ApplyResult(self.server_lr * self.rho)

    def find_factors(self, delta: Vector, m: Vector) -> tuple[float, float]:
        """Return the factors a and b of the corrected delta a * delta + b * m.

        Args:
            delta: The delta of a tensor [k].
            m: The momentum of the tensor [k].
        """
        length = sqrt(scalar_product(delta, delta))
        m_length = sqrt(scalar_product(m, m))
        if length < EPSILON or m_length < EPSILON:
            return 1.0, 0.0
        cosine = min(1.0, max(-1.0, scalar_product(delta, m) / (length * m_length)))
        if cosine >= self.min_cosine:
            return 1.0, 0.0
        confidence = length / (length + self.kappa * m_length + EPSILON)
        if cosine < 0:
            removed = min(self.shrink * -cosine * confidence, self.max_shrink)
            return 1.0, -removed * cosine * length / m_length
        turned = min(self.turn * (1 - cosine) * confidence, 1.0)
        # Length of (1 - turned) * unit(delta) + turned * unit(m).
        mixed = sqrt((1 - turned) ** 2 + turned**2 + 2 * turned * (1 - turned) * cosine)
        return (1 - turned) / mixed, turned * length / (mixed * m_length)

    def memory(self, size: int, clients: int) -> int:
        return 4 * size


def split_by_tensor(tensors: Shapes, where: Index | slice, size: int) -> Iterator[tuple[Index | slice, slice]]:
    """Yield, for each tensor that an update covers, the covered coordinates of the model and the slice of the update.

    Args:
        tensors: The shape of each tensor of the model. If empty, the update counts as one tensor.
        where: Ascending coordinates [k] of the update in the model, or the slice of the whole model.
        size: Length k of the update.
    """
    ends = np.cumsum([prod(shape) for shape in tensors] or [size])
    if not isinstance(where, slice) and tensors:
        ends = np.searchsorted(where, ends)
    for start, stop in pairwise([0, *ends.tolist()]):
        piece = slice(start, stop)
        if start == stop:
            continue
        if isinstance(where, slice):
            yield piece, piece
        else:
            yield where[piece], piece


register(
    Method(
        name="heloco",
        paper="Al Asif et al. 2026",
        formula=(
            "`m ← beta · m + (1 − beta) · rho · g; theta ← theta + server_lr · (rho · g + beta · m)`; g is the delta, "
            "turned towards m in each tensor."
        ),
        when=(
            "Few clients with long tasks and very different speeds, as in the training of language models. With "
            "unequal data, set `update.rho` to 1/sqrt(number of clients)."
        ),
        local=PLAIN_SGD,
        update=HeLoCo(),
        schedule=AsyncSchedule(),
        paper_settings=PaperSettings(
            source="implementation by an author's company",
            values={"server_lr": 0.7, "update.beta": 0.9, "update.min_cosine": 0.2, "momentum": 0.0},
            unstated="the learning rate and the length of a task",
        ),
    )
)
