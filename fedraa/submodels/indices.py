"""Functions that choose the units that a client trains.

They return index sets, which keep at least one unit of every width group. If that is impossible, they raise an
InputError.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import pairwise

import numpy as np

from fedraa.errors import InputError
from fedraa.messages import Floats, Vector
from fedraa.numbers import EXACT_DECIMALS, format_count, round_to_total, round_up
from fedraa.submodels.traced import Group, IndexSet, Traced


def make_fragments(traced: Traced, ratios: Sequence[float]) -> tuple[IndexSet, ...]:
    """Return Fed-RAA's fixed fragments. Each has one contiguous block of units from every width group.

    200 neurons and the ratios (0.2, 0.3, 0.5) give blocks of 40, 60 and 100. Block sizes are rounded by the largest
    remainder. If a group has fewer units than there are fragments, every fragment contains the whole group. Raises
    InputError if every group has fewer units than there are fragments.
    """
    if not ratios or min(ratios) <= 0 or not math.isclose(sum(ratios), 1, abs_tol=1e-6):
        raise InputError("ratios", got=tuple(ratios), expected="positive numbers that sum to 1")
    return _divide_groups(traced, ratios)


def make_blocks(traced: Traced, count: int) -> tuple[IndexSet, ...]:
    """Return `count` fragments of about equal size. Each has one contiguous block of units from every group."""
    return _divide_groups(traced, [1 / count] * count)


def take_prefix(traced: Traced, ratio: float) -> IndexSet:
    """Return the first `ceil(ratio * K)` units of every group of `K` units (HeteroFL)."""
    return tuple(np.arange(_count_units(ratio, group.size)) for group in traced.groups)


def take_window(traced: Traced, ratio: float, start: int) -> IndexSet:
    """Return `ceil(ratio * K)` consecutive units of every group of `K` units (FedRolex).

    After the last unit of a group, the window continues with unit 0.

    Args:
        traced: The traced model.
        ratio: Fraction of the units to choose.
        start: The unit at which the window begins, modulo the group's size.
    """
    return tuple(np.sort((start + np.arange(_count_units(ratio, group.size))) % group.size) for group in traced.groups)


def random_units(traced: Traced, ratio: float, rng: np.random.Generator) -> IndexSet:
    """Return `ceil(ratio * K)` random units of every group of `K` units, without replacement.

    Args:
        traced: The traced model.
        ratio: Fraction of the units to choose.
        rng: Source of random numbers.
    """
    return tuple(np.sort(rng.permutation(group.size)[: _count_units(ratio, group.size)]) for group in traced.groups)


def deal_disjoint(traced: Traced, parts: int, rng: np.random.Generator) -> tuple[IndexSet, ...]:
    """Divide the units of every group at random into `parts` disjoint parts of about equal size (IST).

    Args:
        traced: The traced model.
        parts: Number of parts.
        rng: Source of random numbers.
    """
    equal = make_blocks(traced, parts)
    orders = [rng.permutation(group.size) for group in traced.groups]
    return tuple(tuple(np.sort(order[kept]) for order, kept in zip(orders, part, strict=True)) for part in equal)


def count_owners(traced: Traced, index_sets: Sequence[IndexSet]) -> np.ndarray:
    """Return the number of index sets that contain each parameter of the flat vector, int32 [d].

    With disjoint fragments, the number is 0 for a weight between units of two fragments. This weight is never trained.
    """
    counts: dict[tuple[bytes, ...], tuple[IndexSet, int]] = {}
    for indices in index_sets:
        key = tuple(kept.tobytes() for kept in indices)
        counts[key] = (indices, counts.get(key, (indices, 0))[1] + 1)
    total = np.zeros(traced.size, dtype=np.int32)
    for indices, count in counts.values():
        total[traced.flat_index(indices)] += count
    return total


def drop_unowned(params: Vector, traced: Traced, index_sets: Sequence[IndexSet], *, keep_norms: bool) -> None:
    """Set the parameters to 0 that no index set contains.

    Args:
        params: The flat parameters [d], which are changed.
        traced: The traced model.
        index_sets: The index sets.
        keep_norms: True to multiply the remaining weights of each unit, so that their norm stays the same.
    """
    owned = count_owners(traced, index_sets) > 0
    if keep_norms:
        for shape, place in zip(traced.shapes, traced.places.values(), strict=True):
            if len(shape) > 1 and not owned[place].all():
                rows = params[place].reshape(shape[0], -1)
                before = _norms(rows)
                after = _norms(np.where(owned[place].reshape(rows.shape), rows, np.float32(0)))
                factors = np.divide(before, after, out=np.ones_like(before), where=after > 0)
                rows *= factors[:, None].astype(np.float32)
    params[~owned] = 0.0


def _norms(rows: Vector) -> Floats:
    """Return the norm of each row of a matrix [n, m], computed in double precision."""
    squares: Floats = np.einsum("ij,ij->i", rows, rows, dtype=np.float64)
    return np.sqrt(squares)


def _divide_groups(traced: Traced, ratios: Sequence[float]) -> tuple[IndexSet, ...]:
    """Return an index set for each ratio. An index set has one block of units from every group.

    If a group is too small for this, each index set contains the whole group.
    """
    per_group = []
    for group in traced.groups:
        sizes = divide_units(group.size, ratios)
        if min(sizes) == 0:
            per_group.append([np.arange(group.size)] * len(ratios))
        else:
            per_group.append([np.arange(a, b) for a, b in pairwise(np.cumsum([0, *sizes]))])
    parts = tuple(tuple(group[part] for group in per_group) for part in range(len(ratios)))
    if traced.groups and len(too_small(traced, parts)) == len(traced.groups):
        widest = max(traced.groups, key=lambda group: group.size)
        fragment = divide_units(widest.size, ratios).index(0)
        raise InputError(
            "fragments",
            f"fragment {fragment} of {len(ratios)} would have none of the {format_count(widest.size, 'unit')} of group "
            f"{widest.name!r}, the widest group",
            expected="fewer fragments, or ratios that are more equal",
        )
    return parts


def too_small(traced: Traced, parts: Sequence[IndexSet]) -> list[Group]:
    """Return the groups that have too few units to divide. Each of `parts` contains all units of these groups."""
    whole = [all(len(part[g]) == group.size for part in parts) for g, group in enumerate(traced.groups)]
    return [group for group, is_whole in zip(traced.groups, whole, strict=True) if is_whole and len(parts) > 1]


def divide_units(size: int, ratios: Sequence[float]) -> list[int]:
    """Return the number of units of each part. The numbers have about these ratios, and their sum is `size`."""
    # Without rounding, floating-point errors would count as remainders.
    quotas = np.array([round(size * ratio, EXACT_DECIMALS) for ratio in ratios])
    sizes: list[int] = round_to_total(quotas, size).tolist()
    return sizes


def _count_units(ratio: float, size: int) -> int:
    if not 0 < ratio <= 1:
        raise InputError("ratio", got=ratio, expected="a number over 0 and at most 1")
    return round_up(ratio * size)
