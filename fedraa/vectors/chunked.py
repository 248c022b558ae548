"""Operations on vectors with one value per model parameter, in chunks that fit into the CPU cache.

The bits of a result do not depend on the chunk size or the number of threads.
"""

import os
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from itertools import chain
from threading import local
from typing import Any, Literal, TypeVar

import numpy as np
import numpy.typing as npt

from fedraa.messages import Vector
from fedraa.vectors.index_ranges import CoordinateSet, IndexRanges, iterate_parts

S = TypeVar("S")
T = TypeVar("T")
Kind = TypeVar("Kind", bound=np.generic)

# NumPy sums float64 in blocks of this many elements.
SUM_BLOCK = 8192
# Sums of float32 over short blocks have small rounding errors. Much shorter blocks would take more time.
FLOAT32_BLOCK = 1024
# With smaller chunks, the NumPy calls take more time. Much larger chunks do not fit into the cache.
CHUNK_SIZE = 16 * SUM_BLOCK
# A shorter vector is processed in one thread.
MIN_PARALLEL_SIZE = 1 << 20
# More threads would not read memory faster.
MAX_THREADS = 4
# Each thread gets several shares of the work. A thread on a busy core then processes fewer shares than other threads.
SHARES_PER_THREAD = 4

_OF_THREAD = local()


def map_chunks(size: int, work: Callable[[slice], T]) -> list[T]:
    """Call `work` for each chunk of a vector. Return the results in order. Several threads process a long vector."""
    return parallel_map(split_into_chunks(size), work)


def split_into_chunks(size: int) -> list[slice]:
    """Return the slices that divide a vector of `size` elements into chunks."""
    return [slice(start, min(size, start + CHUNK_SIZE)) for start in range(0, size, CHUNK_SIZE)]


def parallel_map(items: Sequence[S], work: Callable[[S], T]) -> list[T]:
    """Call `work` for each item. Return the results in order. Several threads process a long sequence."""
    threads = 1
    if len(items) * CHUNK_SIZE >= MIN_PARALLEL_SIZE:
        threads = min(MAX_THREADS, count_cores())
    if threads == 1:
        return [work(item) for item in items]
    size = -(-len(items) // (SHARES_PER_THREAD * threads))
    shares = [items[first : first + size] for first in range(0, len(items), size)]

    def map_share(share: Sequence[S]) -> list[T]:
        return [work(item) for item in share]

    return list(chain.from_iterable(_start_pool().map(map_share, shares)))


def borrow_scratch(role: str, size: int, kind: type[Kind] = np.float32) -> npt.NDArray[Kind]:  # type: ignore[assignment]
    """Return an uninitialised array in memory that this thread uses again.

    All calls with the same role return the same memory, so use the array only until the next call with this role.

    Args:
        role: A name for the purpose of the memory.
        size: Number of elements.
        kind: Type of the elements.
    """
    kept: dict[str, npt.NDArray[Any]] = _OF_THREAD.__dict__
    if role not in kept or len(kept[role]) < size:
        kept[role] = np.empty(max(size, CHUNK_SIZE), kind)
    return kept[role][:size]


def subtract_chunk(new: Vector, sent: Vector | None) -> Vector:
    """Return `new` minus `sent`, or `new` if `sent` is None.

    The next call overwrites the result.
    """
    if sent is None:
        return new
    return np.subtract(new, sent, out=borrow_scratch("subtract", len(new)))


def scale_chunk(factor: np.float32, values: Vector) -> Vector:
    """Return factor * values. The next call overwrites the result."""
    if factor == 1:
        return values
    return np.multiply(factor, values, out=borrow_scratch("scale", len(values)))


def add_scaled(
    target: Vector, where: CoordinateSet, weight: float | np.float32, new: Vector, sent: Vector | None = None
) -> None:
    """Add weight * (new - sent) to target[where] in place.

    Args:
        target: Full vector [d].
        where: The coordinates to change [k].
        weight: A factor, which is rounded to float32.
        new: The values to add [k].
        sent: The values to subtract from `new` [k]. None means zeros.
    """
    factor = np.float32(weight)

    def add_chunk(piece: slice) -> None:
        change = new[piece]
        if sent is not None:
            change = subtract_chunk(change, sent[piece])
        change = scale_chunk(factor, change)
        for values, part in iterate_parts(target, where, piece):
            values += change[part].reshape(values.shape)

    map_chunks(len(new), add_chunk)


def copy_coordinates(params: npt.NDArray[Kind], where: CoordinateSet) -> npt.NDArray[Kind]:
    """Return a copy of the values of a full vector [d] at some coordinates [k]."""
    if not isinstance(where, IndexRanges):
        return np.array(params[where])
    taken = np.empty(len(where.index), params.dtype)

    def copy_chunk(piece: slice) -> None:
        for view, part in where.iterate_views(params, piece):
            np.copyto(taken[piece][part].reshape(view.shape), view)

    map_chunks(len(taken), copy_chunk)
    return taken


def step_along(params: Vector, server_lr: float, direction: npt.NDArray[np.float64]) -> None:
    """Add server_lr * direction to `params` in place, rounded to float32.

    Args:
        params: The model [d].
        server_lr: Server learning rate.
        direction: Direction [d], float64.
    """

    def step_chunk(piece: slice) -> None:
        params[piece] += (server_lr * direction[piece]).astype(np.float32)

    map_chunks(len(params), step_chunk)


def mask_or_true(mask: npt.NDArray[np.bool_]) -> npt.NDArray[np.bool_] | Literal[True]:
    """Return True if all values of the mask are True, otherwise the mask. NumPy is faster with a single bool."""
    values = mask
    if mask.strides == (0,):
        # A broadcast mask has the same value everywhere.
        values = mask[:1]
    if values.all():
        return True
    return mask


def ordered_sum(sums: Sequence[float]) -> float:
    """Return the sum of the numbers. They are added in the order of the sequence."""
    if not len(sums):
        return 0.0
    return float(np.add.accumulate(sums)[-1])


def sum_squares(delta: Vector) -> list[float]:
    """Return the sum of squares of each block of `SUM_BLOCK` elements.

    The `ordered_sum` of the result is the squared norm. The order of additions is fixed, because another order would
    change the last bits of norms in the logs.
    """
    wide = borrow_scratch("squares", len(delta), np.float64)
    np.copyto(wide, delta)
    end = len(wide) - len(wide) % SUM_BLOCK
    rows = wide[:end].reshape(-1, SUM_BLOCK)
    tail = wide[end:]
    sums: list[float] = np.einsum("ij,ij->i", rows, rows).tolist()
    if len(tail):
        sums.append(float(np.einsum("i,i->", tail, tail)))
    return sums


def sum_squares_in_float32(delta: Vector) -> list[float]:
    """Return the sum of squares of each block of `FLOAT32_BLOCK` elements, computed in float32.

    It takes a third of the time of `sum_squares`. For norms from 1e-10 to 1e10, the relative error is less than
    1e-4.
    """
    end = len(delta) - len(delta) % FLOAT32_BLOCK
    rows = delta[:end].reshape(-1, FLOAT32_BLOCK)
    sums: list[float] = np.einsum("ij,ij->i", rows, rows).tolist()
    if end < len(delta):
        sums.append(float(np.einsum("i,i->", delta[end:], delta[end:])))
    return sums


def scalar_product(left: Vector, right: Vector) -> float:
    """Return the scalar product in float64. Its bits do not depend on the number of threads."""
    return float(np.einsum("i,i->", left, right, dtype=np.float64))


@cache
def _start_pool() -> ThreadPoolExecutor:
    return ThreadPoolExecutor(min(MAX_THREADS, count_cores()), "pass")


# The threads of the parent do not exist in a forked process.
os.register_at_fork(after_in_child=_start_pool.cache_clear)


def count_cores() -> int:
    """Return the number of cores that this process may use. If it is unknown, return the number of all cores."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1
