"""FedCM: clients blend the last global direction into every gradient (Xu et al. 2021, Algorithm 1).

Client:  w <- w - lr * (alpha * g + (1 - alpha) * D)
Server:  theta <- theta + server_lr * mean delta
         D <- -mean delta / (lr * T)                        # the mean direction of the local steps of the round
T is the number of local steps. If clients differ, lr * T is its mean over the clients of the round. In the paper the
server steps by -eta_g * D, so that server_lr is eta_g / (lr * T).

Read next: server/round_state.py (state beside the model), client/gradient_transforms.py (the blend), methods/fedavg.py
(the round).
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import ClassVar

import numpy as np

from fedraa.composition.method import PLAIN_SGD, Method, PaperSettings
from fedraa.composition.registry import register
from fedraa.messages import Extra, ExtraBuffers, Mask, SharedBuffer, State, Vector
from fedraa.server.round_state import RoundState, RoundStateContext
from fedraa.server.round_update import Mean
from fedraa.submodels.assignment import Assignment
from fedraa.vectors.chunked import copy_coordinates
from fedraa.vectors.index_ranges import where_of


@dataclass
class GlobalMomentum(RoundState):
    """The direction D <- -mean delta / (lr * T), which clients of FedCM and MoFedSAM blend into their gradients.

    T is the number of local steps. D of one round is used in the next round.
    """

    keeps: ClassVar[str] = "D [d]"
    refuses: ClassVar[Mapping[str, str]] = MappingProxyType(
        {
            "momentum": "the server divides deltas by lr * steps, and local momentum makes them longer in every round",
            "local_optimizer": "the server divides deltas by lr * steps, which gives a mean gradient only with SGD",
        }
    )
    momentum: ClassVar[bool] = True
    extra_buffers: ClassVar[ExtraBuffers] = ExtraBuffers(down=1)
    state_fields: ClassVar[tuple[str, ...]] = ("_momentum",)

    def start(self, run: RoundStateContext) -> None:
        self._momentum = np.zeros(run.size, np.float32)
        # All clients of a round share this buffer, because the momentum does not change in the round.
        self._whole: SharedBuffer | None = None

    def send(self, client: int, assignment: Assignment) -> Mapping[str, Extra]:
        if assignment.submodel.index is not None:
            return {"momentum": copy_coordinates(self._momentum, where_of(assignment.submodel))}
        if self._whole is None:
            whole = self._momentum[:]
            whole.flags.writeable = False
            self._whole = SharedBuffer(whole)
        return {"momentum": self._whole}

    def close(self, params: Vector, delta: Vector, moved: Mask, scale: float) -> None:
        self._whole = None
        np.divide(delta, np.float32(-scale), out=self._momentum, where=moved)

    def memory(self, size: int, clients: int) -> int:
        return 8 * size

    def restore(self, state: State) -> None:
        super().restore(state)
        self._whole = None


register(
    Method(
        name="fedcm",
        paper="Xu et al. 2021",
        formula=(
            "Clients step along m · g + (1 − m) · D, m = grad_mix, D = −mean delta / (lr · mean steps) of last round."
        ),
        when="Unequal data and few clients per round: clients keep no state.",
        local=replace(PLAIN_SGD, grad_mix=0.1),
        update=Mean(auxiliary=GlobalMomentum()),
        paper_settings=PaperSettings(
            source="FL-Simulator",
            values={
                "lr": 0.1,
                "lr_schedule": "exponential:0.998",
                "momentum": 0.0,
                "local.grad_mix": 0.1,
                "server_lr": 1.0,
            },
        ),
    )
)
