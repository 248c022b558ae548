"""The training samples from which the scaling of inputs follows, where samples are read by the clients."""

import random
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import torch

from fedraa.data.sources.clients import Dealt, Made, as_inputs
from fedraa.data.tree import Tree, joined, mapped, nbytes, take
from fedraa.rng import generator, torch_seed

MOST_SAMPLES = 8192
MOST_BYTES = 256 * 2**20
FEWEST_SAMPLES = 1024
"""Samples that are read even if they are more than `MOST_BYTES`."""
MOST_CLIENTS = 64
"""Clients that make their samples for this."""


def read_measured(samples: Dealt | Made, seed: int) -> Tree:
    """Return the inputs of all training samples, or of an even random share of them, drawn from the seed.

    The share has `MOST_SAMPLES`; of large samples as many as `MOST_BYTES` hold, but at least `FEWEST_SAMPLES`. If
    clients make their samples, the share is that of at most `MOST_CLIENTS` clients.
    """
    if isinstance(samples, Made):
        return _read_clients(samples, seed)
    count = len(samples.rows)
    with _seeded_globals(seed):
        first, _ = samples.rows.read(np.arange(1))
        most = min(MOST_SAMPLES, max(FEWEST_SAMPLES, MOST_BYTES // max(1, nbytes(as_inputs(first)))))
        rows = np.arange(count)
        if count > most:
            rows = np.sort(generator(seed, "scaling").choice(count, most, replace=False))
        x, _ = samples.rows.read(rows)
    return as_inputs(x)


def _read_clients(samples: Made, seed: int) -> Tree:
    clients = len(samples.offsets) - 1
    parts: list[Tree] = []
    count = 0
    for client in generator(seed, "scaling").choice(clients, min(clients, MOST_CLIENTS), replace=False).tolist():
        with _seeded_globals(seed, client):
            x, y = samples(client)
        parts.append(mapped(np.copy, take(as_inputs(x), slice(MOST_SAMPLES))))
        count += len(y)
        if count >= MOST_SAMPLES:
            break
    return joined(parts)


@contextmanager
def _seeded_globals(seed: int, *index: int) -> Iterator[None]:
    """Seed the global generators, from which a data set's code may draw; put back their states afterwards."""
    before = random.getstate(), np.random.get_state(), torch.get_rng_state()
    drawn = torch_seed(seed, "scaling", *index)
    random.seed(drawn)
    np.random.seed(drawn % 2**32)
    torch.default_generator.manual_seed(drawn)
    try:
        yield
    finally:
        random.setstate(before[0])
        np.random.set_state(before[1])
        torch.set_rng_state(before[2])
