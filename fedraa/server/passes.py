"""Passes over buffers as long as the model: piece by piece, so that what a piece needs stays in the cache.

Every pass here works element by element, so that the bits depend neither on the pieces nor on how many threads
work on them.
"""

import os
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import chain
from typing import Literal, TypeVar

import numpy as np
import numpy.typing as npt

from fedraa.messages import Index, Vector

T = TypeVar("T")

SUMMED = 8192  # elements that NumPy converts to float64 at a time; it adds up their sums one after the other
PIECE = 8 * SUMMED  # elements; a few buffers of so many fit the second cache of a core
ALONE = 1 << 22  # elements below which one thread is enough
THREADS = 4  # at most: more do not read memory faster
SHARES = 4  # of the work per thread, for those that are kept busy by others


def over(size: int, work: Callable[[slice], T]) -> list[T]:
    """What `work` gives for each piece of a buffer, in their order; on several cores if the buffer is long."""
    pieces = [slice(start, min(size, start + PIECE)) for start in range(0, size, PIECE)]
    threads = 1 if size < ALONE else min(THREADS, _cores())
    if threads == 1:
        return [work(piece) for piece in pieces]
    each = -(-len(pieces) // (SHARES * threads))
    shares = [pieces[first : first + each] for first in range(0, len(pieces), each)]

    def do(share: Sequence[slice]) -> list[T]:
        return [work(piece) for piece in share]

    with ThreadPoolExecutor(threads) as pool:
        return list(chain.from_iterable(pool.map(do, shares)))


def accumulate(
    target: Vector, where: Index | slice, weight: float | np.float32, new: Vector, sent: Vector | None = None
) -> None:
    """target[where] += weight * new, or weight * (new - sent), in place; `where` names no coordinate twice."""
    factor = np.float32(weight)

    def add(piece: slice) -> None:
        target[at(where, piece)] += factor * (new[piece] if sent is None else new[piece] - sent[piece])

    over(len(new), add)


def difference(new: Vector, sent: Vector, out: Vector) -> list[float]:
    """new - sent, into `out` [k]; the sums of its squares over each `SUMMED` elements, as `total` takes them."""

    def subtract(piece: slice) -> list[float]:
        delta = np.subtract(new[piece], sent[piece], out=out[piece])
        return _squares(delta)

    return list(chain.from_iterable(over(len(new), subtract)))


def all_or(mask: npt.NDArray[np.bool_]) -> npt.NDArray[np.bool_] | Literal[True]:
    """The mask, or True if it is all true, with which NumPy is several times faster."""
    return True if mask.all() else mask


def squares(delta: Vector) -> float:
    """The square of the norm, as `difference` and `total` give it."""
    return total(list(chain.from_iterable(over(len(delta), lambda piece: _squares(delta[piece])))))


def total(sums: Sequence[float]) -> float:
    """The sum, one after the other."""
    return float(np.add.accumulate(sums)[-1]) if len(sums) else 0.0


def at(where: Index | slice, piece: slice) -> Index | slice:
    """Where a piece of a buffer on the coordinates `where` is; a slice if these are next to each other."""
    if isinstance(where, slice):
        start = where.start or 0
        return slice(start + piece.start, start + piece.stop)
    found = where[piece]
    first, last = int(found[0]), int(found[-1])
    in_a_row = last - first == len(found) - 1 and bool((np.diff(found) == 1).all())
    return slice(first, last + 1) if in_a_row else found


def _squares(delta: Vector) -> list[float]:
    """As NumPy's own sum of products in float64 goes about it, whose bits the logs have."""
    wide = delta.astype(np.float64)
    end = len(wide) - len(wide) % SUMMED
    rows, rest = wide[:end].reshape(-1, SUMMED), wide[end:]
    sums: list[float] = np.einsum("ij,ij->i", rows, rows).tolist()
    return [*sums, float(np.einsum("i,i->", rest, rest))] if len(rest) else sums


def _cores() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
