"""Masks [d] over the flat vector: True for the parameters that a client trains.

A client with a mask holds and computes the full model.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from torch import nn

from fedraa.models.computed_weights import is_weight_norm
from fedraa.submodels.flat import layer_of
from fedraa.submodels.traced import Traced


def find_weight_norm(module: nn.Module) -> str | None:
    """Return the name of a layer with a weight norm, or None.

    A weight norm divides each row of a weight by the norm of the row, so a row that a mask sets to 0 becomes NaN.
    """
    for name, part in module.named_modules():
        if is_weight_norm(part):
            return str(name).partition(".parametrizations.")[0]
    return None


def select_largest(vector: np.ndarray, count: int) -> np.ndarray:
    """Return a mask [d] that selects the `count` values with the largest absolute value.

    Of equal values, the first are selected. NaN counts as the smallest value.
    """
    rank = -np.abs(vector)
    rank[np.isnan(rank)] = np.inf
    last = np.partition(rank, count - 1)[count - 1]
    chosen: np.ndarray = rank < last
    chosen[np.flatnonzero(rank == last)[: count - np.count_nonzero(chosen)]] = True
    return chosen


def hidden_parts(traced: Traced, parts: int) -> np.ndarray:
    """Return the region to which RA-Fed assigns each parameter: int8 [d], from 0 to `parts` - 1.

    Each region has an equal, contiguous block of the hidden units of every tensor. It has the biases and the incoming
    weights of these units. Weights of the output layer are in the region of the hidden unit from which they come. A
    tensor without hidden units is divided by rows, or by elements if it has too few rows.
    """
    region = np.empty(traced.size, np.int8)
    for shape, (name, place) in zip(traced.shapes, traced.places.items(), strict=True):
        owner = traced.module.get_submodule(layer_of(name))
        order = (1, 0) if isinstance(owner, nn.Embedding) else range(len(shape))
        dimensions = (*sorted(traced.units.get(name, ())), *order)
        dimension = next((d for d in dimensions if shape[d] >= parts), None)
        grid = shape
        if dimension is None:
            grid = (place.stop - place.start,)
            dimension = 0
        units = np.indices(grid, sparse=True)[dimension]
        count = grid[dimension]
        mine = units * parts // count
        region[place] = np.broadcast_to(mine, grid).ravel()
    return region


def random_parts(traced: Traced, parts: int, names: Sequence[str], rng: np.random.Generator) -> tuple[np.ndarray, ...]:
    """Return `parts` masks [d] that divide the scalars of some tensors at random (SubDisMO).

    Each scalar of these tensors is in exactly one mask. All other scalars are in every mask.

    Args:
        traced: The traced model.
        parts: Number of masks.
        names: Names of the tensors to divide.
        rng: Source of random numbers.
    """
    split = np.array_split(rng.permutation(np.flatnonzero(traced.mask_of(names))), parts)
    shared = np.ones(traced.size, dtype=bool)
    shared[np.concatenate(split)] = False
    masks = []
    for mine in split:
        mask = shared.copy()
        mask[mine] = True
        masks.append(mask)
    return tuple(masks)
