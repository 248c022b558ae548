"""A function that reads some training samples before a run. The scaling of inputs is computed from them."""

import numpy as np

from fedraa.data.sources.clients import GeneratedSamples, StoredSamples, as_inputs
from fedraa.data.sources.item_generators import ItemGenerators
from fedraa.data.tree import Tree, count_bytes, join_trees, map_tree, take_rows
from fedraa.errors import locate_error
from fedraa.rng import generator

MAX_SAMPLES = 8192
MAX_BYTES = 256 * 2**20
MIN_SAMPLES = 1024
"""Minimum number of samples that are read, even if they need more than `MAX_BYTES` bytes."""
MAX_CLIENTS = 64
"""Maximum number of clients for which a function generates samples to measure the scaling."""


def read_measured(samples: StoredSamples | GeneratedSamples, seed: int, name: str) -> Tree:
    """Return the inputs of all training samples. If there are many, return the inputs of random samples.

    The function reads at most `MAX_SAMPLES` samples. If so many samples have more than `MAX_BYTES` bytes, it reads
    fewer, but at least `MIN_SAMPLES`.

    Args:
        samples: The training samples. If a function generates them, it is called for at most `MAX_CLIENTS` clients.
        seed: The seed with which rows or clients are drawn.
        name: The name of the data in a warning about lost significant digits.
    """
    if isinstance(samples, GeneratedSamples):
        return _read_clients(samples, seed, name)
    count = len(samples.rows)
    with ItemGenerators.of(samples).seed_temporarily(seed, "scaling items"):
        first, _ = samples.rows.read(np.arange(1))
        size = max(1, count_bytes(as_inputs(first)))
        limit = min(MAX_SAMPLES, max(MIN_SAMPLES, MAX_BYTES // size))
        rows = np.arange(count)
        if count > limit:
            rows = np.sort(generator(seed, "scaling").choice(count, limit, replace=False))
        x, _ = samples.rows.read(rows)
    return as_inputs(x, name)


def _read_clients(samples: GeneratedSamples, seed: int, name: str) -> Tree:
    clients = len(samples.offsets) - 1
    parts: list[Tree] = []
    count = 0
    generators = ItemGenerators.of(samples)
    for client in generator(seed, "scaling").choice(clients, min(clients, MAX_CLIENTS), replace=False).tolist():
        try:
            with generators.seed_temporarily(seed, "scaling items", client):
                x, y = samples(client)
                x = map_tree(np.copy, take_rows(as_inputs(x, "" if parts else name), slice(MAX_SAMPLES)))
        # The user's function can raise any exception.
        except Exception as error:
            raise locate_error(error, f"client {client}") from error
        # Skip samples of another shape. `ClientSource` will raise an error for them.
        if not parts or _sample_shapes(x) == _sample_shapes(parts[0]):
            parts.append(x)
            count += len(y)
        if count >= MAX_SAMPLES:
            break
    return join_trees(parts)


def _sample_shapes(x: Tree) -> Tree:
    """Return the shape of one sample in each array. Unlike `sample_shapes`, the result has the structure of `x`."""
    return map_tree(lambda part: part.shape[1:], x)
