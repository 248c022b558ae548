"""Functions on trees of inputs. A tree is one array, or a dict or tuple of arrays with the same number of rows."""

from collections.abc import Callable, Sequence
from itertools import chain
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from fedraa.errors import InputError

# Rows are checked in blocks of this size, so that the checks need little memory.
CHECKED_ROWS = 4096
Array = npt.NDArray[Any]
Tree = Any
"""An array [n, ...], or a dict or a tuple of such arrays, all with n rows."""


def tensor_array(tensor: torch.Tensor) -> Array:
    """Return the values of a tensor. bfloat16 becomes float32, because NumPy has no bfloat16."""
    tensor = tensor.detach().cpu()
    if tensor.dtype is torch.bfloat16:
        tensor = tensor.float()
    return np.asarray(tensor.numpy())


def map_tree(function: Callable[[Any], Any], tree: Tree) -> Tree:
    """Apply a function to every array of a tree. Return the tree of the results."""
    if isinstance(tree, dict):
        return {name: map_tree(function, part) for name, part in tree.items()}
    if isinstance(tree, tuple | list):
        return tuple(map_tree(function, part) for part in tree)
    return function(tree)


def list_leaves(tree: Tree) -> list[Any]:
    """Return a list of the arrays in a tree."""
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
    """Concatenate trees of the same structure along the rows."""
    if isinstance(trees[0], dict):
        return {name: join_trees([tree[name] for tree in trees]) for name in trees[0]}
    if isinstance(trees[0], tuple):
        return tuple(map(join_trees, zip(*trees, strict=True)))
    return np.concatenate(trees)


def sample_shapes(tree: Tree) -> tuple[tuple[int, ...], ...]:
    """Return the shape of one sample in each array, such as ((1, 28, 28),) for images [n, 1, 28, 28]."""
    return tuple(leaf.shape[1:] for leaf in list_leaves(tree))


def format_shapes(shapes: Sequence[tuple[int, ...]]) -> str:
    """Return the shapes as text for an error."""
    return " and ".join(str(list(shape)) for shape in shapes)


def refuse_masked(name: str, x: Any) -> None:
    """Raise InputError if x, an array or a list of rows, has a masked value (`numpy.ma`).

    A plain array would contain the value under the mask.
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


def first_not_finite(tree: Tree) -> int | None:
    """Return the index of the first row with NaN or infinity, or None."""
    arrays = [leaf for leaf in list_leaves(tree) if leaf.dtype.kind == "f"]
    if not arrays:
        return None
    for start in range(0, len(arrays[0]), CHECKED_ROWS):
        rows = slice(start, start + CHECKED_ROWS)
        bad = [~np.isfinite(array[rows]).reshape(len(array[rows]), -1).all(axis=1) for array in arrays]
        bad_rows = np.flatnonzero(np.logical_or.reduce(bad))
        if bad_rows.size:
            return start + int(bad_rows[0])
    return None
