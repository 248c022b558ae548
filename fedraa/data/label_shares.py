"""Measurement of how frequent each label is in the training data of all clients and of single clients."""

from typing import Any

import numpy as np

from fedraa.data.federated import Federated
from fedraa.data.measured import MAX_CLIENTS
from fedraa.rng import generator


def measure_label_shares(data: Federated, classes: int, seed: int) -> tuple[float, ...]:
    """Return the fraction of training samples that have each label, over all clients.

    If a function generates the samples, the result is measured on at most `MAX_CLIENTS` random clients.

    Args:
        data: The divided data, with one label per sample.
        classes: Number of classes.
        seed: The seed for the random clients.
    """
    labels = _known_labels(data)
    if labels is None:
        labels = np.concatenate([data.client(client)[1] for client in _draw_clients(data, seed)])
    counts = np.bincount(labels, minlength=classes)
    return tuple((counts / counts.sum()).tolist())


def measure_label_overlap(data: Federated, shares: tuple[float, ...], seed: int) -> float:
    """Return how similar the label fractions of a client are to the label fractions of all clients, on average.

    The similarity is the overlap of two distributions: the sum, over all labels, of the smaller of the two fractions.
    It is 1 for equal distributions, and 0 for distributions without a common label. The average is over at most
    `MAX_CLIENTS` random clients.

    Args:
        data: The divided data, with one label per sample.
        shares: The fraction of each label in the data of all clients.
        seed: The seed for the random clients.
    """
    labels = _known_labels(data)
    overlaps = []
    for client in _draw_clients(data, seed):
        start, end = data.offsets[client : client + 2]
        shard = data.client(client)[1] if labels is None else labels[start:end]
        counts = np.bincount(shard, minlength=len(shares))
        overlaps.append(np.minimum(counts / max(1, counts.sum()), shares).sum())
    return float(np.mean(overlaps))


def _known_labels(data: Federated) -> Any:
    """Return the labels of all training samples, client by client. None if a function generates the samples."""
    return data.y_train if data.source is None else data.labels


def _draw_clients(data: Federated, seed: int) -> list[int]:
    clients = len(data.sizes)
    chosen: list[int] = generator(seed, "label shares").choice(clients, min(clients, MAX_CLIENTS), False).tolist()
    return chosen
