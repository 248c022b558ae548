"""CGAD, cosine-gated Adam-Decay: scale a delta by its age before it enters Adam's moments (Shah, Sun 2026).

When delta arrives with staleness k:
    s = (1 + cos(pi * min(k, cutoff) / cutoff)) / 2 * exp(-alpha * k)
    m <- beta1 * m + (1 - beta1) * s * delta;  v <- beta2 * v + (1 - beta2) * (s * delta)^2
    theta <- theta + server_lr * m / (1 - beta1^t) / (sqrt(v / (1 - beta2^t)) + epsilon)

Source: the abstract of the paper. It states that s = gate(k) * exp(-alpha * k) scales the delta before both moments,
that the method is plain Adam at k = 0, and that the gate is smooth and is 0 for k >= cutoff. The abstract does not
state the formula of the gate, alpha, the cutoff, Adam's betas and the bias correction, which are decisions of fedraa.

Read next: methods/fedbuff.py (the buffer; here it holds one update), server/staleness.py (other staleness functions).
"""

from dataclasses import dataclass
from math import cos, exp, pi
from typing import ClassVar

import numpy as np

from fedraa.composition.method import PLAIN_SGD, Method, PaperSettings
from fedraa.composition.registry import register
from fedraa.messages import Mask, Vector
from fedraa.methods.fedbuff import FedBuffRule
from fedraa.numbers import Decay, NotNegative, Positive
from fedraa.server.optimizers import SERVER_OPTIMIZER, ServerOptimizer
from fedraa.server.schedule import AsyncSchedule
from fedraa.server.staleness import STALENESS, StalenessWeight
from fedraa.vectors.chunked import map_chunks, mask_or_true


@STALENESS.register("cosine-gate")
@dataclass(frozen=True)
class CosineGate(StalenessWeight):
    """CGAD's weight at staleness k: (1 + cos(pi k / c)) / 2 * exp(-alpha k) for k <= c, and 0 for k > c.

    c is the `cutoff`. The paper's abstract states the exponential and a smooth gate. The cosine and the default values
    are decisions of fedraa.
    """

    alpha: NotNegative = 0.1
    cutoff: Positive = 8.0

    def __call__(self, staleness: int) -> float:
        gate = (1 + cos(pi * min(staleness, self.cutoff) / self.cutoff)) / 2
        return gate * exp(-self.alpha * staleness)


@SERVER_OPTIMIZER.register("corrected-adam")
@dataclass
class CorrectedAdam(ServerOptimizer):
    """Adam (Kingma, Ba 2015) with bias correction, and a separate step number t for each coordinate [d].

    The first step of a coordinate is about server_lr, even if the first client that trains it reports late.

    Attributes:
        server_lr: Length of the step.
        beta1: Decay of the first moment.
        beta2: Decay of the second moment.
        epsilon: Small number that is added to the divisor.
    """

    server_lr: Positive = 1e-3
    beta1: Decay = 0.9
    beta2: Decay = 0.99
    epsilon: Positive = 1e-8

    keeps: ClassVar[str] = "m, v, steps [d]"
    state_fields: ClassVar[tuple[str, ...]] = ("_m", "_v", "_steps")

    def start(self, size: int) -> None:
        self._m = np.zeros(size, np.float32)
        self._v = np.zeros(size, np.float32)
        self._steps = np.zeros(size, np.int32)

    def memory(self, size: int) -> int:
        return 12 * size

    def step(self, params: Vector, delta: Vector, moved: Mask) -> None:
        def step_piece(piece: slice) -> None:
            m = self._m[piece]
            v = self._v[piece]
            steps = self._steps[piece]
            where = mask_or_true(moved[piece])
            np.add(steps, 1, out=steps, where=where)
            np.copyto(m, np.float32(self.beta1) * m + np.float32(1 - self.beta1) * delta[piece], where=where)
            square = np.square(delta[piece])
            np.copyto(v, np.float32(self.beta2) * v + np.float32(1 - self.beta2) * square, where=where)
            # The count of 1 avoids a division by 0 for coordinates without a step, which do not move.
            count = np.maximum(steps, 1)
            root = np.sqrt(v / (1 - self.beta2**count)) + self.epsilon
            direction = (m / (1 - self.beta1**count) / root).astype(np.float32)
            np.add(params[piece], np.float32(self.server_lr) * direction, out=params[piece], where=where)

        map_chunks(len(params), step_piece)


register(
    Method(
        name="cgad",
        paper="Shah, Sun 2026",
        note="the abstract does not give the formula of the gate; fedraa uses a half cosine with its own values",
        formula="A step of Adam along `s · delta`, s = (1 + cos(π k / cutoff)) / 2 · exp(−alpha · k) at staleness k.",
        when="Language models with long tasks, if the staleness of updates varies; constant staleness has no effect.",
        local=PLAIN_SGD,
        update=FedBuffRule(size=1, staleness="cosine-gate", optimizer=CorrectedAdam()),
        schedule=AsyncSchedule(),
        paper_settings=PaperSettings(source="abstract", unstated="everything except its rule"),
    )
)
