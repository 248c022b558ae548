"""Measurement of how frequent each label is in the training data of all clients."""

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
    labels = data.y_train if data.source is None else data.labels
    if labels is None:
        clients = len(data.sizes)
        chosen = generator(seed, "label shares").choice(clients, min(clients, MAX_CLIENTS), replace=False)
        labels = np.concatenate([data.client(client)[1] for client in chosen.tolist()])
    counts = np.bincount(labels, minlength=classes)
    return tuple((counts / counts.sum()).tolist())
