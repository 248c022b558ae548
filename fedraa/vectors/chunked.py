"""Passes over buffers as long as the model: piece by piece, so that what a piece needs stays in the cache.

Every pass here works element by element, so that the bits depend neither on the pieces nor on how many threads
work on them.
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
from fedraa.vectors.index_runs import Runs, Where, parts_of

S = TypeVar("S")
T = TypeVar("T")
Kind = TypeVar("Kind", bound=np.generic)

SUMMED = 8192  # elements that NumPy converts to float64 at a time; it adds up their sums one after the other
PIECE = 16 * SUMMED  # elements; fewer take more calls, and much more would leave the caches
ALONE = 1 << 22  # elements below which one thread is enough
THREADS = 4  # at most: more do not read memory faster
SHARES = 4  # of the work per thread, for those that are kept busy by others

_OF_THREAD = local()


def over(size: int, work: Callable[[slice], T]) -> list[T]:
    """What `work` gives for each piece of a buffer, in their order; on several cores if the buffer is long."""
    return each(pieces(size), work)


def pieces(size: int) -> list[slice]:
    """A buffer of that size in pieces."""
    return [slice(start, min(size, start + PIECE)) for start in range(0, size, PIECE)]


def each(items: Sequence[S], work: Callable[[S], T]) -> list[T]:
    """What `work` gives for each item, which stands for a piece, in their order; on several cores if they are many."""
    threads = 1 if len(items) * PIECE < ALONE else min(THREADS, _cores())
    if threads == 1:
        return [work(item) for item in items]
    some = -(-len(items) // (SHARES * threads))
    shares = [items[first : first + some] for first in range(0, len(items), some)]

    def do(share: Sequence[S]) -> list[T]:
        return [work(item) for item in share]

    return list(chain.from_iterable(_pool().map(do, shares)))


def scratch(role: str, size: int, kind: type[Kind] = np.float32) -> npt.NDArray[Kind]:  # type: ignore[assignment]
    """Memory for numbers of a piece: this thread's own, and the same for the same role, so that it is in the cache."""
    kept: dict[str, npt.NDArray[Any]] = _OF_THREAD.__dict__
    if role not in kept or len(kept[role]) < size:
        kept[role] = np.empty(max(size, PIECE), kind)
    return kept[role][:size]


def less(new: Vector, sent: Vector | None) -> Vector:
    """`new` less what was `sent` of a piece, in memory that is not to be kept; `new` itself where nothing was."""
    return new if sent is None else np.subtract(new, sent, out=scratch("less", len(new)))


def times(factor: np.float32, values: Vector) -> Vector:
    """A multiple of a piece, in memory that is not to be kept."""
    return values if factor == 1 else np.multiply(factor, values, out=scratch("times", len(values)))


def accumulate(
    target: Vector, where: Where, weight: float | np.float32, new: Vector, sent: Vector | None = None
) -> None:
    """target[where] += weight * new, or weight * (new - sent), in place."""
    factor = np.float32(weight)

    def add(piece: slice) -> None:
        change = times(factor, less(new[piece], None if sent is None else sent[piece]))
        for values, part in parts_of(target, where, piece):
            values += change[part].reshape(values.shape)

    over(len(new), add)


def cut(params: npt.NDArray[Kind], where: Where) -> npt.NDArray[Kind]:
    """A copy of those coordinates [k] of a full vector [d]."""
    if not isinstance(where, Runs):
        return np.array(params[where])
    taken = np.empty(len(where.index), params.dtype)

    def take(piece: slice) -> None:
        for view, part in where.views(params, piece):
            np.copyto(taken[piece][part].reshape(view.shape), view)

    over(len(taken), take)
    return taken


def step_along(params: Vector, server_lr: float, direction: npt.NDArray[np.float64]) -> None:
    """params += server_lr * direction, in place; the step is rounded before it is taken."""

    def step(piece: slice) -> None:
        params[piece] += (server_lr * direction[piece]).astype(np.float32)

    over(len(params), step)


def all_or(mask: npt.NDArray[np.bool_]) -> npt.NDArray[np.bool_] | Literal[True]:
    """The mask, or True if it is all true, with which NumPy is several times faster."""
    return True if (mask[:1] if mask.strides == (0,) else mask).all() else mask


def total(sums: Sequence[float]) -> float:
    """The sum, one after the other."""
    return float(np.add.accumulate(sums)[-1]) if len(sums) else 0.0


def squares(delta: Vector) -> list[float]:
    """The sums of squares over each `SUMMED` elements, for `total`.

    As NumPy's own sum of products in float64 goes about it, whose bits the logs have.
    """
    wide = scratch("squares", len(delta), np.float64)
    np.copyto(wide, delta)
    end = len(wide) - len(wide) % SUMMED
    rows, rest = wide[:end].reshape(-1, SUMMED), wide[end:]
    sums: list[float] = np.einsum("ij,ij->i", rows, rows).tolist()
    return [*sums, float(np.einsum("i,i->", rest, rest))] if len(rest) else sums


@cache
def _pool() -> ThreadPoolExecutor:
    return ThreadPoolExecutor(min(THREADS, _cores()), "pass")


os.register_at_fork(after_in_child=_pool.cache_clear)  # which has no threads but one


def _cores() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
