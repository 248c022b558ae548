"""Operations on buffers as long as the model, in chunks that fit into the CPU cache.

Every operation works element by element. Therefore the bits of the result depend neither on the chunk size nor on the
number of threads.
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
from fedraa.vectors.index_runs import CoordinateSet, IndexRuns, iterate_parts

S = TypeVar("S")
T = TypeVar("T")
Kind = TypeVar("Kind", bound=np.generic)

# When NumPy sums in float64, it converts this number of elements at a time, and adds the sums of these blocks in order.
SUM_BLOCK = 8192
# Number of elements in a chunk. Smaller chunks need more calls of NumPy. Much larger chunks do not fit into the caches.
CHUNK_SIZE = 16 * SUM_BLOCK
# A buffer with fewer elements is processed in one thread.
MIN_PARALLEL_SIZE = 1 << 20
# Maximum number of threads. More threads would not read memory faster.
MAX_THREADS = 4
# The work is divided into this number of shares per thread. A thread on a busy core then takes fewer shares.
SHARES_PER_THREAD = 4

_OF_THREAD = local()


def map_chunks(size: int, work: Callable[[slice], T]) -> list[T]:
    """Return the result of `work` for each chunk of a buffer, in order. A long buffer uses several threads."""
    return parallel_map(split_into_chunks(size), work)


def split_into_chunks(size: int) -> list[slice]:
    """Return the slices that divide a buffer of `size` elements into chunks."""
    return [slice(start, min(size, start + CHUNK_SIZE)) for start in range(0, size, CHUNK_SIZE)]


def parallel_map(items: Sequence[S], work: Callable[[S], T]) -> list[T]:
    """Return the result of `work` for each item, in order.

    Each item stands for one chunk. Many items are processed in several threads.
    """
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


# Mypy does not accept a default value for a type variable, so the error is ignored.
def borrow_scratch(role: str, size: int, kind: type[Kind] = np.float32) -> npt.NDArray[Kind]:  # type: ignore[assignment]
    """Return uninitialised memory of this thread for a chunk.

    Calls with the same role return the same memory, which is therefore in the cache. Its numbers are valid only until
    the next call with this role.

    Args:
        role: Name of the purpose of the memory.
        size: Number of elements.
        kind: Type of the elements.
    """
    kept: dict[str, npt.NDArray[Any]] = _OF_THREAD.__dict__
    if role not in kept or len(kept[role]) < size:
        kept[role] = np.empty(max(size, CHUNK_SIZE), kind)
    return kept[role][:size]


def subtract_chunk(new: Vector, sent: Vector | None) -> Vector:
    """Return `new` minus `sent` for a chunk, in scratch memory that the caller must not keep.

    If `sent` is None, return `new`.
    """
    if sent is None:
        return new
    return np.subtract(new, sent, out=borrow_scratch("subtract", len(new)))


def scale_chunk(factor: np.float32, values: Vector) -> Vector:
    """Return a multiple of a chunk, in scratch memory that the caller must not keep."""
    if factor == 1:
        return values
    return np.multiply(factor, values, out=borrow_scratch("scale", len(values)))


def add_scaled(
    target: Vector, where: CoordinateSet, weight: float | np.float32, new: Vector, sent: Vector | None = None
) -> None:
    """Add weight * new, or weight * (new - sent), to target[where] in place.

    Args:
        target: Full vector [d].
        where: Coordinates of the buffers in the full vector.
        weight: Factor, rounded to float32.
        new: Buffer [k].
        sent: Buffer [k] to subtract, or None.
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
    """Return a copy of the values [k] of a full vector [d] at the coordinates `where`."""
    if not isinstance(where, IndexRuns):
        return np.array(params[where])
    taken = np.empty(len(where.index), params.dtype)

    def copy_chunk(piece: slice) -> None:
        for view, part in where.iterate_views(params, piece):
            np.copyto(taken[piece][part].reshape(view.shape), view)

    map_chunks(len(taken), copy_chunk)
    return taken


def step_along(params: Vector, server_lr: float, direction: npt.NDArray[np.float64]) -> None:
    """Add server_lr * direction to `params` in place. The step is rounded to float32 before it is added.

    Args:
        params: The model [d].
        server_lr: Server learning rate.
        direction: Direction [d], float64.
    """

    def step_chunk(piece: slice) -> None:
        params[piece] += (server_lr * direction[piece]).astype(np.float32)

    map_chunks(len(params), step_chunk)


def mask_or_true(mask: npt.NDArray[np.bool_]) -> npt.NDArray[np.bool_] | Literal[True]:
    """Return True if all elements of the mask are true, else the mask. NumPy is several times faster with a bool."""
    values = mask
    if mask.strides == (0,):
        # All elements of a broadcast mask are one value in memory, so one element is enough.
        values = mask[:1]
    if values.all():
        return True
    return mask


def ordered_sum(sums: Sequence[float]) -> float:
    """Return the sum of the numbers, added in order."""
    if not len(sums):
        return 0.0
    return float(np.add.accumulate(sums)[-1])


def sum_squares(delta: Vector) -> list[float]:
    """Return the sum of squares of each block of `SUM_BLOCK` elements, which `ordered_sum` adds up.

    NumPy has the same order when it sums products in float64. Another order would change the bits of norms in the logs.
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


def scalar_product(left: Vector, right: Vector) -> float:
    """Return the scalar product, summed in float64 in an order that does not depend on the number of threads."""
    return float(np.einsum("i,i->", left, right, dtype=np.float64))


@cache
def _start_pool() -> ThreadPoolExecutor:
    return ThreadPoolExecutor(min(MAX_THREADS, count_cores()), "pass")


# A forked child process has none of its parent's threads, so it must make its own pool.
os.register_at_fork(after_in_child=_start_pool.cache_clear)


def count_cores() -> int:
    """Return the number of cores that this process may use, or of all cores if the process's affinity is unknown."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1
