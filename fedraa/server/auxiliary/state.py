"""State that rides along with rounds: what tasks carry besides the model, and what their returns change.

All of it lives at the server, keyed by the client's id, so that it survives any placement of work. Buffers
that the protocol would move between client and server are billed (`extra_buffers`).
"""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from fedraa.messages import SharedBuffer, Update, Vector
from fedraa.rundir.checkpoint import State
from fedraa.server.aggregation.aggregate import CoverageMean
from fedraa.server.task_table import ExtraBuffers
from fedraa.submodels.policies.policies import Assignment, Mask


class AuxiliaryState:
    """Carries nothing."""

    @property
    def extra_buffers(self) -> ExtraBuffers:
        return ExtraBuffers()

    def send(self, client: int, assignment: Assignment) -> Mapping[str, Vector | SharedBuffer]:
        """Further buffers for the client's task."""
        return {}

    def receive(
        self, client: int, assignment: Assignment, update: Update, delta: Vector, weight: float, lr: float
    ) -> None:
        """Takes in what came back; `delta` is on the trained coordinates."""

    def close(self, params: Vector, delta: Vector, moved: Mask, scale: float) -> None:
        """The round is over: `delta` [d] is its mean, `scale` the learning rate times the mean local steps."""

    def state(self) -> State:
        return {}

    def restore(self, state: State) -> None:
        """Takes back what `state` gave."""


class ControlVariates(AuxiliaryState):
    """SCAFFOLD (Karimireddy et al. 2020), option II, in full coordinates, on the covered ones.

    Clients step along g - c_i + c. c_i+ = c_i - c + (theta - y) / (T_i lr) with the client's own T_i;
    c += (1/N) sum (c_i+ - c_i). All start at 0.
    """

    extra_buffers = ExtraBuffers(down=1, up=1)

    def __init__(self, size: int, clients: int) -> None:
        self._server = np.zeros(size, np.float32)
        self._client = np.zeros((clients, size), np.float32)
        self._change = np.zeros(size, np.float32)

    def send(self, client: int, assignment: Assignment) -> Mapping[str, Vector | SharedBuffer]:
        return {"control": assignment.part.take(self._server - self._client[client])}

    def receive(
        self, client: int, assignment: Assignment, update: Update, delta: Vector, weight: float, lr: float
    ) -> None:
        where = assignment.where
        change = -self._server[where] - delta / np.float32(update.steps * lr)
        self._client[client][where] += change
        self._change[where] += change

    def close(self, params: Vector, delta: Vector, moved: Mask, scale: float) -> None:
        self._server += self._change / np.float32(len(self._client))
        self._change.fill(0)

    def state(self) -> State:
        return {"server": self._server, "client": self._client, "change": self._change}

    def restore(self, state: State) -> None:
        self._server[:], self._client[:] = state["server"], state["client"]
        self._change[:] = state["change"]


class GlobalMomentum(AuxiliaryState):
    """FedCM, MoFedSAM: Delta <- -mean gain / (lr T), mixed into every local gradient of the next round."""

    extra_buffers = ExtraBuffers(down=1)

    def __init__(self, size: int, clients: int) -> None:
        self._momentum = np.zeros(size, np.float32)
        self._whole: SharedBuffer | None = None  # as it is sent in this round with the whole model

    def send(self, client: int, assignment: Assignment) -> Mapping[str, Vector | SharedBuffer]:
        if assignment.part.index is not None:
            return {"momentum": assignment.part.take(self._momentum)}
        if self._whole is None:
            self._whole = SharedBuffer(self._momentum.copy())
        return {"momentum": self._whole}

    def close(self, params: Vector, delta: Vector, moved: Mask, scale: float) -> None:
        self._whole = None
        np.divide(delta, np.float32(-scale), out=self._momentum, where=moved)

    def state(self) -> State:
        return {"momentum": self._momentum}

    def restore(self, state: State) -> None:
        self._momentum[:], self._whole = state["momentum"], None


class FrozenMomentum(GlobalMomentum):
    """MimeLite: m <- (1 - beta) mean full-batch gradient at theta + beta m, frozen while clients train."""

    extra_buffers = ExtraBuffers(down=1, up=1)

    def __init__(self, size: int, clients: int, *, beta: float) -> None:
        super().__init__(size, clients)
        self._beta = np.float32(beta)
        self._gradient = CoverageMean(size)

    def receive(
        self, client: int, assignment: Assignment, update: Update, delta: Vector, weight: float, lr: float
    ) -> None:
        gradient = assignment.trained(update.extras["gradient"]).copy()
        self._gradient.add(client, assignment.where, gradient, weight, lr)

    def close(self, params: Vector, delta: Vector, moved: Mask, scale: float) -> None:
        self._whole = None
        mean, _, covered = self._gradient.finish(1.0)
        fresh = (1 - self._beta) * mean + self._beta * self._momentum
        np.copyto(self._momentum, fresh, where=covered)

    def state(self) -> State:
        return super().state() | {"gradient": self._gradient.state()}

    def restore(self, state: State) -> None:
        super().restore(state)
        self._gradient.restore(state["gradient"])


class Adversaries(AuxiliaryState):
    """FedRobust: each client's own affine input perturbation (L, d), which never leaves the client."""

    def __init__(self, inputs: int, clients: int) -> None:
        identity = np.concatenate([np.ones(inputs, np.float32), np.zeros(inputs, np.float32)])
        self._client = np.tile(identity, (clients, 1))

    def send(self, client: int, assignment: Assignment) -> Mapping[str, Vector | SharedBuffer]:
        return {"adversary": self._client[client].copy()}

    def receive(
        self, client: int, assignment: Assignment, update: Update, delta: Vector, weight: float, lr: float
    ) -> None:
        self._client[client] = update.extras["adversary"]

    def state(self) -> State:
        return {"client": self._client}

    def restore(self, state: State) -> None:
        self._client[:] = state["client"]


@dataclass(frozen=True)
class Carry:
    """Which companion a method's rounds have: none, control, momentum, frozen-momentum or adversary."""

    kind: str = "none"

    @property
    def keeps(self) -> str:
        kept = {
            "control": "c [d], c_n [N, d]",
            "momentum": "Delta [d]",
            "frozen-momentum": "m [d]",
            "adversary": "Lambda_n, delta_n [N, 2 inputs]",
        }
        return kept.get(self.kind, "")

    def bind(self, size: int, clients: int, *, inputs: int, fresh: float) -> AuxiliaryState:
        match self.kind:
            case "control":
                return ControlVariates(size, clients)
            case "momentum":
                return GlobalMomentum(size, clients)
            case "frozen-momentum":
                return FrozenMomentum(size, clients, beta=1 - fresh)
            case "adversary":
                return Adversaries(inputs, clients)
        return AuxiliaryState()

    def memory(self, size: int, clients: int, inputs: int) -> int:
        """Server bytes."""
        per_client = {"control": size, "adversary": 2 * inputs}.get(self.kind, 0)
        return 4 * (per_client * clients + (0 if self.kind in ("none", "adversary") else 2 * size))
