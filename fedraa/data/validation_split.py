"""Validation samples: a fraction of each client's training samples that is used only for evaluation."""

from dataclasses import replace
from typing import Any

import numpy as np

from fedraa.data.federated import Federated
from fedraa.data.sources.clients import ClientSource, TrainingSubset
from fedraa.data.tree import Tree, join_trees, take_rows
from fedraa.errors import InputError
from fedraa.messages import Index
from fedraa.rng import generator


def hold_back(data: Federated, share: float, seed: int) -> Federated:
    """Replace the test samples by a random fraction of each client's training samples.

    Every client keeps at least one training sample. A client with several samples gets at least one test sample.

    Args:
        data: The data set, divided among clients.
        share: The fraction of each client's training samples that become test samples.
        seed: The seed with which the samples are drawn.

    Raises:
        InputError: Every client has only one sample.
    """
    held, kept = _draw_held_back(data.sizes, share, seed)
    if not any(len(places) for places in held):
        raise InputError(
            "validation",
            "every client has only one sample, which it needs for training",
            got=share,
            hint="use more data, or fewer clients",
        )
    parts = [_select_samples(data, client, places) for client, places in enumerate(held) if len(places)]
    x_test = join_trees([x for x, _ in parts])
    y_test = np.concatenate([y for _, y in parts])
    counts = np.array([len(places) for places in held])
    dataset = replace(data.dataset, x_test=x_test, y_test=y_test)
    data = replace(data, test_order=np.arange(counts.sum()), test_offsets=_sum_offsets(counts))
    sizes = np.array([len(places) for places in kept])
    rows = np.concatenate([start + places for start, places in zip(data.offsets[:-1], kept, strict=True)])
    if data.labels is not None:
        data = replace(data, labels=data.labels[rows])
    if data.order is not None:
        held_rows = np.concatenate([start + places for start, places in zip(data.offsets[:-1], held, strict=True)])
        data = replace(data, order=data.order[rows], held_back=data.order[held_rows])
    offsets = _sum_offsets(sizes)
    if data.source is None:
        dataset = replace(dataset, x_train=take_rows(dataset.x_train, rows), y_train=dataset.y_train[rows])
        return replace(data, dataset=dataset, offsets=offsets)
    assert isinstance(data.source, ClientSource)
    source = replace(data.source, samples=TrainingSubset(data.source.samples, kept, offsets))
    return replace(data, dataset=dataset, offsets=offsets, source=source)


def _draw_held_back(sizes: Index, share: float, seed: int) -> tuple[tuple[Index, ...], tuple[Index, ...]]:
    """Return the test samples and the kept samples of each client, as two tuples of ascending indices.

    Args:
        sizes: The number of training samples of each client.
        share: The fraction of the samples that become test samples.
        seed: The seed with which the samples are drawn.
    """
    held, kept = [], []
    for client, size in enumerate(sizes.tolist()):
        order = generator(seed, "validation", client).permutation(size)
        count = min(size - 1, max(1, round(share * size)))
        held.append(np.sort(order[:count]))
        kept.append(np.sort(order[count:]))
    return tuple(held), tuple(kept)


def _select_samples(data: Federated, client: int, places: Index) -> tuple[Tree, Any]:
    x, y = data.client(client)
    return take_rows(x, places), y[places]


def _sum_offsets(counts: Index) -> Index:
    return np.concatenate(([0], np.cumsum(counts)))
