"""Policies over width groups: each makes index sets, the choice of units that a client trains.

Every function treats all groups alike and keeps at least one unit of each group, or raises ValueError.
What is random takes its generator.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import pairwise

import numpy as np

from fedraa.submodels.traced import Group, IndexSet, Traced


def fragments(traced: Traced, ratios: Sequence[float]) -> tuple[IndexSet, ...]:
    """Fed-RAA's fixed fragments: disjoint, contiguous blocks of every group, in the order of `ratios`.

    Sizes are rounded by largest remainder: 200 neurons at (0.2, 0.3, 0.5) give 40, 60 and 100. A group with too few
    units, of which a fragment would get none, is whole in all of them. Raises ValueError if every group is so small.
    """
    if not ratios or min(ratios) <= 0 or not math.isclose(sum(ratios), 1, abs_tol=1e-6):
        raise ValueError(f"ratios: {tuple(ratios)} given, expected positive numbers that sum to 1")
    return _blocks(traced, "ratios", ratios)


def blocks(traced: Traced, count: int) -> tuple[IndexSet, ...]:
    """`count` disjoint, contiguous blocks of every group, as equal as their sizes allow."""
    return _blocks(traced, "count", [1 / _positive("count", count)] * count)


def prefix(traced: Traced, ratio: float) -> IndexSet:
    """HeteroFL: the first `ceil(ratio * K)` units of every group of `K`."""
    return tuple(np.arange(_ceil(ratio, group.size)) for group in traced.groups)


def window(traced: Traced, ratio: float, start: int) -> IndexSet:
    """FedRolex: `ceil(ratio * K)` units of every group of `K`, from `start` modulo `K` on, wrapping."""
    return tuple(np.sort((start + np.arange(_ceil(ratio, group.size))) % group.size) for group in traced.groups)


def random_units(traced: Traced, ratio: float, rng: np.random.Generator) -> IndexSet:
    """`ceil(ratio * K)` units of every group of `K`, drawn without replacement, group by group."""
    return tuple(np.sort(rng.permutation(group.size)[: _ceil(ratio, group.size)]) for group in traced.groups)


def disjoint(traced: Traced, parts: int, rng: np.random.Generator) -> tuple[IndexSet, ...]:
    """IST: every group, shuffled on its own, dealt to `parts` disjoint parts as equal as possible."""
    equal = blocks(traced, parts)
    orders = [rng.permutation(group.size) for group in traced.groups]
    return tuple(tuple(np.sort(order[kept]) for order, kept in zip(orders, part, strict=True)) for part in equal)


def owners(traced: Traced, index_sets: Sequence[IndexSet]) -> np.ndarray:
    """How many of the index sets contain each coordinate of the flat vector: int32 `[d]`.

    Over the fragments of a model: 1 is owned by one fragment, `len(index_sets)` shared by all (output bias),
    0 never trained (blocks between different fragments of two adjacent groups).
    """
    counts: dict[tuple[bytes, ...], tuple[IndexSet, int]] = {}
    for indices in index_sets:
        key = tuple(kept.tobytes() for kept in indices)
        counts[key] = (indices, counts.get(key, (indices, 0))[1] + 1)
    total = np.zeros(traced.size, dtype=np.int32)
    for indices, count in counts.values():
        total[traced.flat_index(indices)] += count
    return total


def _blocks(traced: Traced, field: str, ratios: Sequence[float]) -> tuple[IndexSet, ...]:
    """A group with too few units for so many parts is whole in all of them; ValueError if every group is."""
    per_group, empty = [], None
    for group in traced.groups:
        sizes = _largest_remainder(group.size, ratios)
        if min(sizes) == 0:
            empty = empty or (group, sizes.index(0))
            per_group.append([np.arange(group.size)] * len(ratios))
        else:
            per_group.append([np.arange(a, b) for a, b in pairwise(np.cumsum([0, *sizes]))])
    parts = tuple(tuple(group[part] for group in per_group) for part in range(len(ratios)))
    if empty and len(too_small(traced, parts)) == len(traced.groups):
        raise ValueError(
            f"{field}: {len(ratios)} parts of group {empty[0].name!r} with {empty[0].size} units would leave part "
            f"{empty[1]} without any, and no other group is large enough, expected fewer or more even parts"
        )
    return parts


def too_small(traced: Traced, parts: Sequence[IndexSet]) -> list[Group]:
    """The groups that are whole in all of several parts."""
    whole = [all(len(part[g]) == group.size for part in parts) for g, group in enumerate(traced.groups)]
    return [group for group, is_whole in zip(traced.groups, whole, strict=True) if is_whole and len(parts) > 1]


def _largest_remainder(size: int, ratios: Sequence[float]) -> list[int]:
    # rounded, so that 0.3 * 10 has no remainder
    quotas = [round(size * ratio, 9) for ratio in ratios]
    sizes = [math.floor(quota) for quota in quotas]
    by_remainder = sorted(range(len(ratios)), key=lambda i: (sizes[i] - quotas[i], i))
    for i in by_remainder[: size - sum(sizes)]:
        sizes[i] += 1
    return sizes


def _ceil(ratio: float, size: int) -> int:
    if not 0 < ratio <= 1:
        raise ValueError(f"ratio: {ratio} given, expected more than 0 and at most 1")
    return math.ceil(round(ratio * size, 9))


def _positive(field: str, value: int) -> int:
    if value < 1:
        raise ValueError(f"{field}: {value} given, expected at least 1")
    return value
