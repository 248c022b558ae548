"""PruneFL (Jiang et al. 2022) at a fixed density: one shared mask, re-chosen as training goes."""

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from fedraa.messages import ExtraBuffers, State, Update, Vector
from fedraa.submodels.assignment import Assignment, Mask
from fedraa.submodels.blocks import maskable
from fedraa.submodels.policies.policy import RoundContext, RunContext, SubmodelPolicy, SubmodelSampler

REMOVABLE = 0.3  # of each tensor's present weights, the smallest; halves every REMOVABLE_HALF_LIFE rounds
REMOVABLE_HALF_LIFE = 10_000


class SharedMask(SubmodelSampler):
    """The mask, the squared gradients of all coordinates since it was chosen, and how it is chosen anew.

    Every `every` rounds the smallest present weights of each tensor become removable; they and the absent
    weights compete by importance, the sum of squared gradients, for the places that the density leaves.
    Importance is per unit of time in the paper, with layer times of a Raspberry Pi; a weight costs the same
    FLOPs in every tensor of a linear chain, so times are equal here. The model is theta * m: absent weights are
    0. As in the released code, a weight that regrows has the value that it had when it was pruned.
    """

    asks: ClassVar[tuple[str, ...]] = ("squares",)

    def __init__(self, run: RunContext, params: Vector, density: float, every: int) -> None:
        names = maskable(run.traced)
        self._spans = [
            (offset, offset + int(np.prod(shape)))
            for name, shape, offset in zip(run.traced.names, run.traced.shapes, run.traced.offsets, strict=True)
            if name in names
        ]
        self._whole, self._density, self._every = run.whole(), density, every
        self._squares = np.zeros(run.traced.size, np.float32)
        self._rounds = 0
        self.mask: Mask = np.ones(run.traced.size, bool)
        for start, end in self._spans:
            size = end - start
            keep = np.argsort(-np.abs(params[start:end]), kind="stable")[: max(1, round(density * size))]
            self.mask[start:end] = False
            self.mask[start + keep] = True
        self._pruned = params.copy()
        params[~self.mask] = 0.0

    @property
    def extra_buffers(self) -> ExtraBuffers:
        """Before the mask is chosen anew, the squared gradients of all coordinates."""
        return ExtraBuffers(up_whole=int((self._rounds + 1) % self._every == 0))

    def draw(self, turn: RoundContext) -> Assignment:
        return Assignment(0, self._whole, self.mask)

    def receive(self, assignment: Assignment, update: Update, weight: float) -> None:
        self._squares += np.float32(weight) * update.extras["squares"]

    def close(self, params: Vector, delta: Vector, moved: Mask, scale: float) -> None:
        self._rounds += 1
        if self._rounds % self._every == 0:
            mask = self._choose(params)
            pruned, regrown = self.mask & ~mask, mask & ~self.mask
            self._pruned[pruned] = params[pruned]
            params[pruned], params[regrown] = 0.0, self._pruned[regrown]
            self.mask = mask
            self._squares.fill(0)

    def _choose(self, params: Vector) -> Mask:
        mask = self.mask.copy()
        share = REMOVABLE * 0.5 ** (self._rounds / REMOVABLE_HALF_LIFE)
        candidates = np.zeros_like(mask)
        places = 0
        for start, end in self._spans:
            present = start + np.flatnonzero(mask[start:end])
            smallest = present[np.argsort(np.abs(params[present]), kind="stable")[: int(share * len(present))]]
            candidates[start:end] = ~mask[start:end]
            candidates[smallest] = True
            mask[smallest] = False
            places += len(smallest)
        rivals = np.flatnonzero(candidates)
        winners = rivals[np.argsort(-self._squares[rivals], kind="stable")[:places]]
        mask[winners] = True
        return mask

    def state(self) -> State:
        return {"mask": self.mask, "pruned": self._pruned, "squares": self._squares, "rounds": self._rounds}

    def restore(self, state: State) -> None:
        self.mask, self._rounds = state["mask"], state["rounds"]
        self._squares[:], self._pruned[:] = state["squares"], state["pruned"]


@dataclass(frozen=True)
class AdaptivePruning(SubmodelPolicy):
    """PruneFL: one mask of a fixed density for all clients, re-chosen every so many rounds.

    The first keeps the largest of the initial parameters; the others become 0.
    """

    density: float = 0.5
    every: int = 50

    keeps: ClassVar[str] = "mask, sum g^2 [d]"

    def bind(self, run: RunContext) -> SubmodelSampler:
        assert run.params is not None
        return SharedMask(run, run.params, self.density, self.every)
