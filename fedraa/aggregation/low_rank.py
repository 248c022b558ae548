"""Means of low-rank adapters whose ranks differ: HetLoRA pads them with zeros, FLoRA stacks them."""

import math
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Self

import numpy as np
import numpy.typing as npt

from fedraa.aggregation.adapters import Pair, adapters
from fedraa.aggregation.aggregator import Contribution, RoundTotals
from fedraa.aggregation.coverage_mean import Covered
from fedraa.messages import Index, Vector
from fedraa.rng import generator
from fedraa.submodels.assignment import Assignment, Mask
from fedraa.submodels.policies.policy import RunContext

LEAST = 1e-12  # weight of adapters whose product is 0: of equal ones, if all are


@dataclass
class LowRank(Covered):
    """Covered, of a model whose adapters it knows; of one without any it is Covered itself."""

    def bind(self, size: int, clients: int) -> Self:
        own = super().bind(size, clients)
        own._begin(clients)
        return own

    def _begin(self, clients: int) -> None:
        """What is kept from round to round."""
        self._pairs: list[Pair] = []

    def see(self, run: RunContext) -> None:
        self._run, self._pairs = run, adapters(run.traced)

    def moves(self, client: int, assignment: Assignment) -> tuple[int, int] | None:
        if self._pairs and assignment.mask is not None:
            raise ValueError(
                f"aggregator: {type(self).__name__} takes whole units of adapters, and the submodels here are masks "
                "over them; take full, prefix or rolling"
            )
        return None

    @property
    def _params(self) -> Vector:
        """The model [d] as it stands: from one end of a round to the next it stays as it is."""
        assert self._run.params is not None
        return self._run.params

    def _padded(self, contribution: Contribution) -> Vector:
        """What the client trained, in a full vector [d], and 0 elsewhere."""
        padded = np.zeros_like(self._params)

        def put(place: Index | slice, delta: Vector) -> None:
            padded[place] = self._params[place] + delta

        contribution.change.each(put)
        return padded

    def _adapters(self) -> Mask:
        """Which coordinates [d] are of adapters."""
        mine = np.zeros(self._size, bool)
        for pair in self._pairs:
            mine[pair.a] = mine[pair.b] = True
        return mine

    def memory(self, size: int, clients: int) -> int:
        return super().memory(size, clients) + 4 * size


@dataclass
class HetLoRA(LowRank):
    """HetLoRA (Cho et al. 2024), without the pruning of ranks: A = sum p_i A_i, B = sum p_i B_i, absent units being 0.

    p_i = s_i / sum s, s_i = ||B_i A_i||_F over all layers: the root of the sum of squares. Units that nobody trained in
    a round stay as they are. All else that is trained is weighed alike, over those who trained it.
    """

    def _begin(self, clients: int) -> None:
        super()._begin(clients)
        self._heard = 0

    def add(self, contribution: Contribution) -> None:
        if self._pairs:
            padded = self._padded(contribution)
            norm = math.sqrt(sum(pair.squared_norm(padded) for pair in self._pairs))
            contribution = replace(contribution, weight=max(norm, LEAST))
        self._heard += 1
        super().add(contribution)

    def finish(self, totals: RoundTotals) -> tuple[Vector, Mask]:
        mine = self._adapters() & totals.covered & (totals.coverage < self._heard)  # trained by some, not by all
        participants, self._heard = np.float32(self._participants), 0
        delta, moved = super().finish(totals)
        if self._pairs:
            share = self._weighed[mine] / participants
            delta[mine] = share * delta[mine] - (1 - share) * self._params[mine]
        return delta, moved

    def _divisor(self) -> Vector:
        self._weighed = np.asarray(super()._divisor())
        return self._weighed

    def state(self) -> dict[str, Any]:
        return super().state() | {"heard": self._heard}

    def restore(self, state: dict[str, Any]) -> None:
        super().restore(state)
        self._heard = state["heard"]


@dataclass
class FLoRA(LowRank):
    """FLoRA (Wang et al. 2024): a layer's weight moves by scale sum p_i B_i A_i, exactly, and adapters begin anew.

    That sum is the stack [B_1 ... B_K] [p_1 A_1; ...; p_K A_K], p_i the client's share of the samples that reported.
    The paper's clients add it to their base. Here it is the delta of the parameters `merged`, which are part of the
    model at the server, and which clients read and do not train: what they make of them is not heard. Then B is 0 and A
    drawn anew, the same for all clients, of which each trains its units. All else that is trained is averaged over
    those who trained it.

    Billed as the paper has it: up, the client's adapter; down, it and the stacks of all rounds since the client's last
    task, or the merged weights where those are less.
    """

    keeps: ClassVar[str] = "merged weights"

    def _begin(self, clients: int) -> None:
        super()._begin(clients)
        self._products: list[npt.NDArray[np.float64]] = []
        self._samples = 0.0
        self._round = self._stack = self._stacked = 0
        self._received = np.zeros(clients, np.int64)

    def see(self, run: RunContext) -> None:
        super().see(run)
        if any(pair.merged is None for pair in self._pairs):
            raise ValueError(
                "aggregator: FLoRA adds what adapters learnt to the weights of their layers, and this model has no "
                "room for that; make it by fedraa.lora(model, merge=True)"
            )
        self._clear()

    def add(self, contribution: Contribution) -> None:
        if self._pairs:
            padded, weight = self._padded(contribution), contribution.weight
            for pair, product in zip(self._pairs, self._products, strict=True):
                product += weight * pair.change(padded)
            self._samples += weight
            self._stack += int(self._adapters()[contribution.where].sum())
        super().add(contribution)

    def finish(self, totals: RoundTotals) -> tuple[Vector, Mask]:
        delta, moved = super().finish(totals)
        moved = moved.copy()
        rng = generator(self._run.seed, "flora", self._round) if self._pairs else None
        for pair, product in zip(self._pairs, self._products, strict=True):
            assert pair.merged is not None
            assert rng is not None
            delta[pair.merged], moved[pair.merged] = product / self._samples, True
            moved[pair.a] = moved[pair.b] = False  # no step is taken there: they are set
            pair.begin(self._params, rng)
        self._round += 1
        self._stacked += self._stack
        self._clear()
        return delta, moved

    def moves(self, client: int, assignment: Assignment) -> tuple[int, int] | None:
        super().moves(client, assignment)
        if not self._pairs:
            return None
        where, merged = assignment.where, self._merged
        trained = len(self._params) if isinstance(where, slice) else len(where)
        up = trained - merged
        down = up + min(merged, self._stacked - int(self._received[client]))
        self._received[client] = self._stacked
        return down, up

    @property
    def _merged(self) -> int:
        """Coordinates of merged weights."""
        return sum(pair.merged.stop - pair.merged.start for pair in self._pairs if pair.merged is not None)

    def _clear(self) -> None:
        self._products = [np.zeros(pair.merged.stop - pair.merged.start) for pair in self._pairs if pair.merged]
        self._samples, self._stack = 0.0, 0

    def memory(self, size: int, clients: int) -> int:
        return super().memory(size, clients) + 8 * size + 8 * clients

    def state(self) -> dict[str, Any]:
        return super().state() | {
            "products": self._products,
            "samples": self._samples,
            "round": self._round,
            "stack": self._stack,
            "stacked": self._stacked,
            "received": self._received,
        }

    def restore(self, state: dict[str, Any]) -> None:
        super().restore(state)
        for product, before in zip(self._products, state["products"], strict=True):
            product[:] = before
        self._samples, self._round = state["samples"], state["round"]
        self._stack, self._stacked = state["stack"], state["stacked"]
        self._received[:] = state["received"]
