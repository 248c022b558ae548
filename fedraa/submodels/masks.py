"""Element-wise masks, for the methods that are defined on single parameters.

Each mask is a bool vector `[d]` in the flat layout, True where a client trains. A masked client holds and
computes the full model.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from torch import nn

from fedraa.submodels.traced import Traced


def bernoulli(traced: Traced, p: float, rng: np.random.Generator) -> np.ndarray:
    """Each coordinate on its own with probability `p` (shuffled sub-models, Algorithm 1)."""
    if not 0 < p <= 1:
        raise ValueError(f"p: {p} given, expected more than 0 and at most 1")
    return np.less(rng.random(traced.size), p)


def magnitude(vector: np.ndarray, low: float, high: float) -> np.ndarray:
    """The coordinates of a vector `[d]` whose rank by `|value|` is in `[low * d, high * d)`.

    Rank 0 is the smallest value; equal values rank in the order of their coordinates. `(1 - r, 1)` keeps the
    largest share `r`; OAP's and RA-Fed's quarters are `(0, 0.25)` and so on. Their released code takes the
    positions that sort the values for ranks, which makes a random partition; these are ranks.
    """
    if not 0 <= low < high <= 1:
        raise ValueError(f"low, high: {low}, {high} given, expected 0 <= low < high <= 1")
    rank = np.empty(vector.size, dtype=np.int64)
    rank[np.argsort(np.abs(vector), kind="stable")] = np.arange(vector.size)
    bounds = np.rint(np.array([low, high]) * vector.size)
    chosen: np.ndarray = (rank >= bounds[0]) & (rank < bounds[1])
    return chosen


def top(vector: np.ndarray, count: int) -> np.ndarray:
    """The `count` coordinates of a vector `[d]` with the largest `|value|`, of equals the first, NaN after all others.

    By selection, which is linear: sorting a model took longer than a short task on it.
    """
    rank = -np.abs(vector)
    rank[np.isnan(rank)] = np.inf
    last = np.partition(rank, count - 1)[count - 1]
    chosen: np.ndarray = rank < last
    chosen[np.flatnonzero(rank == last)[: count - np.count_nonzero(chosen)]] = True
    return chosen


def hidden_parts(traced: Traced, parts: int) -> np.ndarray:
    """RA-Fed's regions: which of `parts` regions each coordinate is in, int8 `[d]`, by its hidden unit.

    A hidden unit has the weights into it and its bias, and of an output layer, whose own units are classes, the weights
    out of it. Regions are equal contiguous shares of a tensor's hidden units: of the first of its dimensions that can
    be cut, else of its output units, the columns of an embedding and the rows of all else, else of its elements.
    """
    if parts < 1:
        raise ValueError(f"parts: {parts} given, expected at least 1")
    region = np.empty(traced.size, np.int8)
    for name, shape, offset in zip(traced.names, traced.shapes, traced.offsets, strict=True):
        size = int(np.prod(shape))
        owner = traced.module.get_submodule(name.rpartition(".")[0])
        order = (1, 0) if isinstance(owner, nn.Embedding) else range(len(shape))
        dimensions = (*sorted(traced.units.get(name, ())), *order)
        dimension = next((d for d in dimensions if shape[d] >= parts), None)
        units = np.arange(size) if dimension is None else np.indices(shape, sparse=True)[dimension]
        count = size if dimension is None else shape[dimension]
        mine = units * parts // count
        region[offset : offset + size] = mine if dimension is None else np.broadcast_to(mine, shape).ravel()
    return region


def random_parts(traced: Traced, parts: int, names: Sequence[str], rng: np.random.Generator) -> tuple[np.ndarray, ...]:
    """SubDisMO's split: `parts` masks that share out the elements of the named parameters at random.

    Every element of these parameters is in exactly one mask, and masks differ by at most one element in size;
    all other parameters are in every mask.
    """
    if parts < 1:
        raise ValueError(f"parts: {parts} given, expected at least 1")
    unknown = sorted(set(names) - set(traced.names))
    if unknown or not names:
        raise ValueError(f"names: {unknown or 'nothing'} given, expected trainable parameters of the module")
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
