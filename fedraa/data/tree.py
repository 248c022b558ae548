"""Samples as one array, or as a dict or a tuple of arrays whose rows belong together."""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[Any]
Tree = Any
"""An array [n, ...], or a dict or a tuple of such arrays, all of n rows."""


def mapped(function: Callable[[Any], Any], tree: Tree) -> Tree:
    """`function` of every array, in the shape of the tree."""
    if isinstance(tree, dict):
        return {name: mapped(function, part) for name, part in tree.items()}
    if isinstance(tree, tuple | list):
        return tuple(mapped(function, part) for part in tree)
    return function(tree)


def leaves(tree: Tree) -> list[Any]:
    """The arrays, in order."""
    parts = tree.values() if isinstance(tree, dict) else tree if isinstance(tree, tuple | list) else None
    return [tree] if parts is None else [leaf for part in parts for leaf in leaves(part)]


def take(tree: Tree, rows: Any) -> Tree:
    """These rows: of a slice views, of an array of row numbers copies."""
    if isinstance(rows, slice):
        return mapped(lambda array: array[rows], tree)
    return mapped(lambda array: array.take(rows, axis=0), tree)


def joined(trees: Sequence[Tree]) -> Tree:
    """The rows of several trees of one shape, one after another."""
    if isinstance(trees[0], dict):
        return {name: joined([tree[name] for tree in trees]) for name in trees[0]}
    if isinstance(trees[0], tuple):
        return tuple(map(joined, zip(*trees, strict=True)))
    return np.concatenate(trees)


def refuse_masked(name: str, x: Any) -> None:
    """Raise ValueError if NumPy masks a value of x, an array or a list of rows; an array would show the value below."""
    if isinstance(x, np.ma.MaskedArray):
        rows = np.argwhere(np.ma.getmaskarray(x))
    elif isinstance(x, list | tuple):
        rows = np.array([[row] for row, part in enumerate(x) if np.ma.is_masked(part)])
    else:
        return
    if rows.size:
        raise ValueError(f"{name} row {rows[0][0]} is masked; fill it in".lstrip())


def nbytes(tree: Tree) -> int:
    return sum(int(leaf.nbytes) for leaf in leaves(tree))


def first_not_finite(tree: Tree, block: int = 4096) -> int | None:
    """The first row with a NaN or an infinity; None if there is none. Looks at `block` rows at a time."""
    arrays = [leaf for leaf in leaves(tree) if leaf.dtype.kind == "f"]
    for start in range(0, len(arrays[0]) if arrays else 0, block):
        rows = slice(start, start + block)
        bad = [~np.isfinite(array[rows]).reshape(len(array[rows]), -1).all(axis=1) for array in arrays]
        found = np.flatnonzero(np.logical_or.reduce(bad))
        if found.size:
            return start + int(found[0])
    return None
