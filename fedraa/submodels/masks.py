"""Masks [d] over the flat vector: True for the parameters that a client trains.

A client with a mask holds and computes the full model.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from torch import nn

from fedraa.errors import InputError
from fedraa.submodels.traced import Traced


def draw_bernoulli(traced: Traced, p: float, rng: np.random.Generator) -> np.ndarray:
    """Return a mask [d] that contains each coordinate with probability `p` (shuffled submodels, Algorithm 1).

    Args:
        traced: The traced model.
        p: Probability of each coordinate.
        rng: Source of random numbers.
    """
    if not 0 < p <= 1:
        raise InputError("p", got=p, expected="a number over 0 and at most 1")
    return np.less(rng.random(traced.size), p)


def select_by_magnitude(vector: np.ndarray, low: float, high: float) -> np.ndarray:
    """Return a mask [d] of the coordinates with a rank by |value| from `low * d` to below `high * d`.

    Rank 0 is the smallest value. `(1 - r, 1)` selects the share `r` of largest values. `(0, 0.25)` is the first quarter
    of OAP and RA-Fed. (Their released code uses the result of argsort as ranks, so its quarters are random.)

    Args:
        vector: The vector [d].
        low: Lowest rank in the mask, as a share of d.
        high: First rank above the mask, as a share of d.
    """
    if not 0 <= low < high <= 1:
        raise InputError("low, high", got=(low, high), expected="0 <= low < high <= 1")
    rank = np.empty(vector.size, dtype=np.int64)
    rank[np.argsort(np.abs(vector), kind="stable")] = np.arange(vector.size)
    bounds = np.rint(np.array([low, high]) * vector.size)
    chosen: np.ndarray = (rank >= bounds[0]) & (rank < bounds[1])
    return chosen


def select_largest(vector: np.ndarray, count: int) -> np.ndarray:
    """Return a mask [d] of the `count` coordinates with the largest `|value|`.

    Of equal values the first are chosen. NaN counts as the smallest.
    """
    rank = -np.abs(vector)
    rank[np.isnan(rank)] = np.inf
    last = np.partition(rank, count - 1)[count - 1]
    chosen: np.ndarray = rank < last
    chosen[np.flatnonzero(rank == last)[: count - np.count_nonzero(chosen)]] = True
    return chosen


def hidden_parts(traced: Traced, parts: int) -> np.ndarray:
    """Return the region of each coordinate, int8 [d], from 0 to `parts` - 1 (RA-Fed).

    The units of each tensor form equal contiguous regions. A hidden unit's region has its bias and its incoming
    weights. In the output layer it has the outgoing weights. Tensors without hidden units are divided by output units,
    or by elements if these are too few.
    """
    if parts < 1:
        raise InputError("parts", got=parts, expected="1 or more")
    region = np.empty(traced.size, np.int8)
    for name, shape, offset in zip(traced.names, traced.shapes, traced.offsets, strict=True):
        size = int(np.prod(shape))
        owner = traced.module.get_submodule(name.rpartition(".")[0])
        order = (1, 0) if isinstance(owner, nn.Embedding) else range(len(shape))
        dimensions = (*sorted(traced.units.get(name, ())), *order)
        dimension = next((d for d in dimensions if shape[d] >= parts), None)
        grid = shape
        if dimension is None:
            grid = (size,)
            dimension = 0
        units = np.indices(grid, sparse=True)[dimension]
        count = grid[dimension]
        mine = units * parts // count
        region[offset : offset + size] = np.broadcast_to(mine, grid).ravel()
    return region


def random_parts(traced: Traced, parts: int, names: Sequence[str], rng: np.random.Generator) -> tuple[np.ndarray, ...]:
    """Return `parts` masks [d] that divide the elements of the named parameters at random (SubDisMO).

    Each of these elements is in exactly one mask. All other parameters are in every mask.

    Args:
        traced: The traced model.
        parts: Number of masks.
        names: Parameters to divide.
        rng: Source of random numbers.
    """
    if parts < 1:
        raise InputError("parts", got=parts, expected="1 or more")
    unknown = sorted(set(names) - set(traced.names))
    if unknown or not names:
        raise InputError("names", got=unknown, expected="trainable parameters of the module")
    chosen = [
        np.arange(offset, offset + int(np.prod(shape)))
        for name, shape, offset in zip(traced.names, traced.shapes, traced.offsets, strict=True)
        if name in names
    ]
    split = np.array_split(rng.permutation(np.concatenate(chosen)), parts)
    shared = np.ones(traced.size, dtype=bool)
    shared[np.concatenate(split)] = False
    masks = []
    for mine in split:
        mask = shared.copy()
        mask[mine] = True
        masks.append(mask)
    return tuple(masks)
