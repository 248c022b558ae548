"""Functions on trees of inputs: one array, or a dict or tuple of arrays with equal rows."""

from collections.abc import Callable, Sequence
from itertools import chain
from typing import Any

import numpy as np
import numpy.typing as npt

from fedraa.errors import InputError

Array = npt.NDArray[Any]
Tree = Any
"""An array [n, ...], or a dict or a tuple of such arrays, all with n rows."""


def map_tree(function: Callable[[Any], Any], tree: Tree) -> Tree:
    """Return a tree of the same structure with the function's result for every array."""
    if isinstance(tree, dict):
        return {name: map_tree(function, part) for name, part in tree.items()}
    if isinstance(tree, tuple | list):
        return tuple(map_tree(function, part) for part in tree)
    return function(tree)


def list_leaves(tree: Tree) -> list[Any]:
    """Return the arrays of the tree, in order."""
    if isinstance(tree, dict):
        tree = tuple(tree.values())
    if not isinstance(tree, tuple | list):
        return [tree]
    return list(chain.from_iterable(list_leaves(part) for part in tree))


def take_rows(tree: Tree, rows: Any) -> Tree:
    """Return some rows of every array. A slice gives views, row numbers give copies."""
    if isinstance(rows, slice):
        return map_tree(lambda array: array[rows], tree)
    return map_tree(lambda array: array.take(rows, axis=0), tree)


def join_trees(trees: Sequence[Tree]) -> Tree:
    """Return the trees, which have the same structure, concatenated along the rows."""
    if isinstance(trees[0], dict):
        return {name: join_trees([tree[name] for tree in trees]) for name in trees[0]}
    if isinstance(trees[0], tuple):
        return tuple(map(join_trees, zip(*trees, strict=True)))
    return np.concatenate(trees)


def refuse_masked(name: str, x: Any) -> None:
    """Raise InputError if x, an array or a list of rows, has a masked value (`numpy.ma`).

    A plain array would contain the hidden value.
    """
    if isinstance(x, np.ma.MaskedArray):
        rows = np.argwhere(np.ma.getmaskarray(x))
    elif isinstance(x, list | tuple):
        rows = np.array([[row] for row, part in enumerate(x) if np.ma.is_masked(part)])
    else:
        return
    if rows.size:
        raise InputError(f"{name} row {rows[0][0]}", "it has a masked value", hint="fill it in")


def count_bytes(tree: Tree) -> int:
    """Return the total number of bytes of all arrays."""
    return sum(int(leaf.nbytes) for leaf in list_leaves(tree))


def first_not_finite(tree: Tree, block: int = 4096) -> int | None:
    """Return the first row with NaN or infinity, or None. To save memory, it checks `block` rows at a time."""
    arrays = [leaf for leaf in list_leaves(tree) if leaf.dtype.kind == "f"]
    if not arrays:
        return None
    for start in range(0, len(arrays[0]), block):
        rows = slice(start, start + block)
        bad = [~np.isfinite(array[rows]).reshape(len(array[rows]), -1).all(axis=1) for array in arrays]
        bad_rows = np.flatnonzero(np.logical_or.reduce(bad))
        if bad_rows.size:
            return start + int(bad_rows[0])
    return None
