"""PruneFL (Jiang et al. 2022) at a fixed density: all clients share one mask, which changes during training."""

from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import numpy.typing as npt
import torch
from pydantic import NonNegativeInt
from torch import Tensor, nn

from fedraa.data.tree import Tree, list_leaves
from fedraa.messages import ExtraBuffers, Mask, Update, Vector
from fedraa.models.forward import forward
from fedraa.models.statistics import NORMS
from fedraa.numbers import Count, Share
from fedraa.submodels.assignment import Assignment
from fedraa.submodels.blocks import find_maskable_names
from fedraa.submodels.flat import canonical_names, layer_of
from fedraa.submodels.masks import select_largest
from fedraa.submodels.policies.policy import RoundContext, RunContext, SubmodelPolicy, SubmodelSampler
from fedraa.submodels.traced import Traced

# The first mask update may drop the fraction REMOVABLE of the weights of each tensor. The fraction halves every
# REMOVABLE_HALF_LIFE rounds.
REMOVABLE = 0.3
REMOVABLE_HALF_LIFE = 10_000

# These layers multiply each input by one weight.
ELEMENTWISE = (*NORMS, nn.GroupNorm, nn.LayerNorm, nn.RMSNorm, nn.modules.instancenorm._InstanceNorm, nn.PReLU)


class SharedMask(SubmodelSampler):
    """PruneFL's mask during a run, with the squared gradients that determine the next mask.

    The mask is updated after each of the first `initial` rounds, and then every `every` rounds. An update drops the
    smallest weights of each tensor. It adds the same number of weights that are outside of the mask, the most important
    first.

    The importance of a weight is the sum of its squared gradients, divided by the number of uses in a forward pass.
    The released code divides this sum by the time on a Raspberry Pi.

    Weights outside of the mask are 0. A weight that enters the mask again gets its last value, as in the released code.
    Personal layers are never pruned: each client has its own weights there, and evaluates all of them.
    """

    asks: ClassVar[tuple[str, ...]] = ("squares",)
    state_fields: ClassVar[tuple[str, ...]] = ("mask", "_pruned", "_squares", "_rounds")

    def __init__(self, run: RunContext, params: Vector, density: float, every: int, initial: int) -> None:
        names = find_maskable_names(run.traced)
        shared = np.ones(run.traced.size, bool) if run.shared is None else run.shared
        places = run.traced.places.items()
        self._places = [place for name, place in places if name in names and shared[place].all()]
        self._whole = run.whole()
        self._density = density
        self._every = every
        self.alone = initial
        self._times = weight_times(run.traced, run.example)
        self._squares = np.zeros(run.traced.size, np.float32)
        self._rounds = 0
        self.mask: Mask = np.ones(run.traced.size, bool)
        for place in self._places:
            count = max(1, round(density * (place.stop - place.start)))
            self.mask[place] = select_largest(params[place], count)
        self._pruned = params.copy()
        params[~self.mask] = 0.0

    @property
    def extra_buffers(self) -> ExtraBuffers:
        """Return the extra buffers: before a mask update, clients also send the squared gradients of all weights."""
        return ExtraBuffers(up_whole=int(self._mask_is_due))

    @property
    def _mask_is_due(self) -> bool:
        return self._rounds < self.alone or (self._rounds + 1) % self._every == 0

    def draw(self, turn: RoundContext) -> Assignment:
        return Assignment(0, self._whole, self.mask)

    def receive(self, assignment: Assignment, update: Update, weight: float) -> None:
        self._squares += np.float32(weight) * update.extras["squares"]

    def close(self, params: Vector, delta: Vector, moved: Mask, scale: float) -> None:
        adjusts = self._mask_is_due
        self._rounds += 1
        if adjusts:
            mask = self._choose_mask(params)
            pruned, regrown = self.mask & ~mask, mask & ~self.mask
            self._pruned[pruned] = params[pruned]
            params[pruned] = 0.0
            params[regrown] = self._pruned[regrown]
            self.mask = mask
            self._squares.fill(0)

    def _choose_mask(self, params: Vector) -> Mask:
        mask = self.mask.copy()
        share = REMOVABLE * 0.5 ** (self._rounds / REMOVABLE_HALF_LIFE)
        candidates = np.zeros_like(mask)
        removed = 0
        for place in self._places:
            present = place.start + np.flatnonzero(mask[place])
            smallest = present[np.argsort(np.abs(params[present]), kind="stable")[: int(share * len(present))]]
            candidates[place] = ~mask[place]
            candidates[smallest] = True
            mask[smallest] = False
            removed += len(smallest)
        rivals = np.flatnonzero(candidates)
        importance = self._squares[rivals] / self._times[rivals]
        mask[rivals[np.argsort(-importance, kind="stable")[:removed]]] = True
        return mask


def weight_times(traced: Traced, example: Tree | None) -> npt.NDArray[np.float32]:
    """Return how many times the forward pass of one sample uses each weight [d].

    A convolution uses a weight at every output pixel, a transposed convolution at every input pixel. A layer over a
    sequence uses it at every position. A norm and a PReLU use a weight for every output that it multiplies. The number
    is 1 for layers that are never called, and for all layers if `example` is None.
    """
    times = np.ones(traced.size, np.float32)
    if example is None:
        return times
    used = _count_positions(traced, example)
    counts = dict.fromkeys(traced.names, 0.0)
    # A weight that several layers share is used by each of them.
    for name, own in canonical_names(traced.module).items():
        counts[own] += used.get(layer_of(name), 0.0)
    for name, place in traced.places.items():
        times[place] = max(1.0, counts[name])
    return times


def _count_positions(traced: Traced, example: Tree) -> dict[str, float]:
    """Return, for each layer, the number of positions of one sample at which it uses its weights, such as pixels."""
    module = traced.make_full_skeleton().eval()
    samples = len(list_leaves(example)[0])
    positions: dict[str, float] = {}

    def note_positions(name: str, layer: nn.Module, inputs: tuple[object, ...], out: object) -> None:
        spread = out
        if isinstance(out, tuple):
            spread = out[0]
        if isinstance(layer, nn.modules.conv._ConvTransposeNd) and inputs:
            spread = inputs[0]
        if isinstance(spread, Tensor) and spread.numel():
            if isinstance(layer, ELEMENTWISE):
                units = layer.weight.numel()
            elif isinstance(layer, nn.modules.conv._ConvNd):
                units = spread.shape[1]
            else:
                units = spread.shape[-1]
            positions[name] = positions.get(name, 0.0) + spread.numel() / samples / units

    layers = {layer_of(name) for name, _ in module.named_parameters()}
    for name, layer in module.named_modules():
        if name in layers:
            layer.register_forward_hook(lambda layer, inputs, out, name=name: note_positions(name, layer, inputs, out))
    with torch.no_grad(), torch.random.fork_rng():
        forward(module, example)
    for name, layer in module.named_modules():
        # An attention layer reads the weights of its output projection without a call of this projection.
        if isinstance(layer, nn.MultiheadAttention) and name in positions:
            positions[f"{name}.out_proj".lstrip(".")] = positions[name]
    return positions


@dataclass(frozen=True)
class AdaptivePruning(SubmodelPolicy):
    """PruneFL: all clients share one mask of a fixed density. It is updated every `reprune_every` rounds.

    The first mask selects the largest initial parameters. All other parameters become 0. In the first `initial` rounds,
    only the first client trains, and the mask is updated after each round.

    Attributes:
        density: Fraction of the parameters in the mask. With 1, the mask never changes.
        reprune_every: Number of rounds between two mask updates.
        initial: Number of rounds at the start in which only the first client trains.
    """

    density: Share = 0.5
    reprune_every: Count = 50
    initial: NonNegativeInt = 5

    keeps: ClassVar[str] = "mask, sum g^2 [d]"
    needs_squares: ClassVar[bool] = True
    full_width: ClassVar[bool] = True

    @property
    def alone(self) -> int:
        if self.density == 1:
            return 0
        return self.initial

    def bind(self, run: RunContext) -> SubmodelSampler:
        assert run.params is not None
        return SharedMask(run, run.params, self.density, self.reprune_every, self.alone)
