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
    weights of these units. If a unit has several rows, such as one per gate of an LSTM, all of them are in its region.
    Weights of the output layer are in the region of the hidden unit from which they come. A tensor without hidden units
    is divided by rows, or by elements if it has too few rows.
    """
    region = np.empty(traced.size, np.int8)
    for shape, (name, place) in zip(traced.shapes, traced.places.items(), strict=True):
        owner = traced.module.get_submodule(layer_of(name))
        order = (1, 0) if isinstance(owner, nn.Embedding) else range(len(shape))
        dimensions = (*sorted(traced.units.get(name, ())), *order)
        dimension = next((d for d in dimensions if shape[d] >= parts), None)
        if dimension is None:
            length = place.stop - place.start
            region[place] = np.arange(length) * parts // length
            continue
        units = traced.units.get(name, {}).get(dimension, np.full(shape[dimension], -1))
        along = _divide_line(traced, units, parts)
        region[place] = np.broadcast_to(along.reshape(-1, *(1,) * (len(shape) - dimension - 1)), shape).ravel()
    return region


def _divide_line(traced: Traced, units: np.ndarray, parts: int) -> np.ndarray:
    """Return the region of each index along one dimension of a tensor.

    The regions of a width group are equal blocks of its units. If it has fewer units than regions, each run of adjacent
    indices of a unit is divided, and all runs of the unit are divided equally.

    Args:
        traced: The traced model.
        units: The unit ID at each index, or -1. Indices with -1 are divided by their position.
        parts: Number of regions.
    """
    index = np.arange(len(units))
    region = index * parts // len(units)
    # The ID before the first index is -2, which no index has.
    starts = np.flatnonzero(np.diff(units, prepend=-2))
    position_in_run = index - np.repeat(starts, np.diff(starts, append=len(units)))
    first = 0
    for group in traced.groups:
        mine = np.flatnonzero((units >= first) & (units < first + group.size))
        if len(mine):
            place = units[mine] - first
            places = group.size
            if group.size < parts:
                longest_run = position_in_run[mine].max() + 1
                place = place * longest_run + position_in_run[mine]
                places = group.size * longest_run
            region[mine] = place * parts // places
        first += group.size
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
