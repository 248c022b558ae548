"""The training samples that the scaling of inputs is measured on, if the clients read the samples."""

import numpy as np

from fedraa.data.sources.clients import Dealt, Made, as_inputs
from fedraa.data.sources.item_generators import ItemGenerators
from fedraa.data.tree import Tree, joined, mapped, nbytes, take
from fedraa.errors import located
from fedraa.rng import generator

MOST_SAMPLES = 8192
MOST_BYTES = 256 * 2**20
FEWEST_SAMPLES = 1024
"""Samples that are read even if they are more than `MOST_BYTES`."""
MOST_CLIENTS = 64
"""Clients that make their samples for this."""


def read_measured(samples: Dealt | Made, seed: int, name: str) -> Tree:
    """Return the inputs of all training samples, or of an even random share of them, drawn from the seed.

    The share has `MOST_SAMPLES`; of large samples as many as `MOST_BYTES` hold, but at least `FEWEST_SAMPLES`. If
    clients make their samples, the share is that of at most `MOST_CLIENTS` clients. A warning with `name` says which
    feature loses its digits.
    """
    if isinstance(samples, Made):
        return _read_clients(samples, seed, name)
    count = len(samples.rows)
    with ItemGenerators.of(samples).seeded(seed, "scaling items"):
        first, _ = samples.rows.read(np.arange(1))
        most = min(MOST_SAMPLES, max(FEWEST_SAMPLES, MOST_BYTES // max(1, nbytes(as_inputs(first)))))
        rows = np.arange(count)
        if count > most:
            rows = np.sort(generator(seed, "scaling").choice(count, most, replace=False))
        x, _ = samples.rows.read(rows)
    return as_inputs(x, name)


def _read_clients(samples: Made, seed: int, name: str) -> Tree:
    clients = len(samples.offsets) - 1
    parts: list[Tree] = []
    count, generators = 0, ItemGenerators.of(samples)
    for client in generator(seed, "scaling").choice(clients, min(clients, MOST_CLIENTS), replace=False).tolist():
        try:
            with generators.seeded(seed, "scaling items", client):
                x, y = samples(client)
                x = mapped(np.copy, take(as_inputs(x, "" if parts else name), slice(MOST_SAMPLES)))
        except Exception as error:
            raise located(error, f"client {client}") from error
        # `ClientSource` refuses a client whose samples differ from the others in shape.
        if not parts or _shapes(x) == _shapes(parts[0]):
            parts.append(x)
            count += len(y)
        if count >= MOST_SAMPLES:
            break
    return joined(parts)


def _shapes(x: Tree) -> Tree:
    return mapped(lambda part: part.shape[1:], x)
