"""Detection of random samples in a data set. The samples are read twice and compared."""

import warnings
from collections.abc import Callable

import numpy as np

from fedraa.data.sources.item_generators import ItemGenerators
from fedraa.data.sources.rows import ArrayRows, ImageRows, NpyRows, Rows
from fedraa.data.tree import Array, Tree, join_trees, list_leaves, map_tree, refuse_masked
from fedraa.errors import RunWarning

TRIED_ROWS = 256
ROWS_PER_READ = 1024


def is_steady(read: Callable[[], tuple[Tree, Array]], generators: ItemGenerators, seed: int) -> bool:
    """Return True if two reads with the same seeds return the same samples and targets.

    Args:
        read: A function that reads the samples.
        generators: The generators that are seeded before each read.
        seed: The seed of the generators.
    """
    reads = []
    for _ in range(2):
        with generators.seed_temporarily(seed, "trial items"):
            x, y = read()
        reads.append([np.copy(leaf) for leaf in (*list_leaves(x), y)])
    first, second = reads
    return len(first) == len(second) and all(map(_are_equal, first, second))


def are_rows_steady(rows: Rows, generators: ItemGenerators, seed: int) -> bool:
    """Return True if two reads of some rows with the same seeds return the same samples.

    Args:
        rows: The rows. At most `TRIED_ROWS` evenly spaced ones are read.
        generators: The generators that are seeded before each read.
        seed: The seed of the generators.
    """
    if isinstance(getattr(rows, "rows", rows), ArrayRows | NpyRows | ImageRows):
        return True
    count = len(rows)
    tried = np.unique(np.linspace(0, count - 1, min(count, TRIED_ROWS)).astype(np.int64))
    return is_steady(lambda: rows.read(tried), generators, seed)


def warn_unsteady(dataset: str, what: str) -> None:
    """Warn that two reads with the same seeds gave different samples.

    Args:
        dataset: The name of the data set.
        what: The samples: `train` or `test`.
    """
    warnings.warn(
        f"dataset {dataset!r}: {what} gave different samples in two reads after the same random seeds, so the run "
        "cannot be repeated bit for bit; draw random numbers from random, numpy.random or torch, or from a generator "
        "that is an attribute of the data set",
        RunWarning,
        stacklevel=2,
    )


def read_whole(rows: Rows, generators: ItemGenerators, seed: int) -> tuple[Tree, Array] | None:
    """Read all rows. Return their samples and targets, or None if a read draws random numbers.

    Args:
        rows: The rows, which are read in blocks of `ROWS_PER_READ`.
        generators: The generators from which a read may draw random numbers.
        seed: The seed of the generators.
    """
    if isinstance(rows, ArrayRows):
        return rows.read(np.arange(len(rows)))
    parts = []
    for start in range(0, len(rows), ROWS_PER_READ):
        with generators.seed_temporarily(seed, "trial items") as draws:
            x, y = rows.read(np.arange(start, min(start + ROWS_PER_READ, len(rows))))
        if draws.drew:
            return None
        for array in (*list_leaves(x), y):
            refuse_masked("", array)
        parts.append((map_tree(np.asarray, x), np.asarray(y)))
    xs, ys = zip(*parts, strict=True)
    return join_trees(xs), np.concatenate(ys)


def _are_equal(a: Array, b: Array) -> bool:
    return a.shape == b.shape and np.array_equal(a, b, equal_nan=a.dtype.kind == "f" and b.dtype.kind == "f")
