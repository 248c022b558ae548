"""Random choice of equally many samples for each client, with class probabilities that differ between clients."""

import numpy as np

from fedraa.data.partition.counts import Shares
from fedraa.messages import Index


def draw_equal_shards(classes: Index, mixtures: Shares, rng: np.random.Generator) -> list[Index]:
    """Return floor(samples / clients) rows for each client.

    In each turn, every client draws one row, in a random order of the clients. It first draws a class from its mixture,
    and then an unused row of this class. A class without unused rows is removed from all mixtures. A client with an
    empty mixture draws from all unused rows.

    Args:
        classes: The class of each sample, from 0, int64 `[samples]`.
        mixtures: The probability of each class for each client, `[clients, classes]`. Each row sums to 1.
        rng: The source of random numbers.
    """
    clients = len(mixtures)
    rows = rng.permutation(len(classes))
    rows = rows[np.argsort(classes[rows], kind="stable")]
    left = np.bincount(classes, minlength=mixtures.shape[1])
    starts = np.cumsum(left) - left
    bounds = _cumulate_mixtures(mixtures, left)
    shards = np.empty((clients, len(classes) // clients), np.int64)
    for turn in range(shards.shape[1]):
        uniform = rng.random(clients)
        for client in rng.permutation(clients).tolist():
            drawn = np.searchsorted(bounds[client], uniform[client], side="right")
            left[drawn] -= 1
            shards[client, turn] = rows[starts[drawn] + left[drawn]]
            if left[drawn] == 0 and left.any():
                bounds = _cumulate_mixtures(mixtures, left)
    return list(shards)


def _cumulate_mixtures(mixtures: Shares, left: Index) -> Shares:
    """Return the cumulative probabilities [clients, classes] of the classes with unused rows.

    `mixtures` [clients, classes] has the probabilities of all classes, and `left` [classes] the numbers of unused rows.
    """
    weights = mixtures * (left > 0)
    weights[weights.sum(axis=1) == 0] = left
    bounds = np.cumsum(weights / weights.sum(axis=1, keepdims=True), axis=1)
    # Rounding may make the last bound less than 1. A draw could then find no class.
    bounds[bounds >= bounds[:, -1:]] = np.inf
    return bounds
