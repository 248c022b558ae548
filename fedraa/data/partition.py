"""Which client owns which sample.

A split is one matrix of shares, class by client, applied to the training labels and then, as it came out
there, to the test labels: a client's test shard has the class proportions of its training shard.
"""

import math
from dataclasses import dataclass
from typing import Literal, NamedTuple, get_args

import numpy as np
import numpy.typing as npt

Index = npt.NDArray[np.int64]
Shares = npt.NDArray[np.float64]
Scheme = Literal["iid", "dirichlet", "labels"]

DIRICHLET_DRAWS = 100


class Shards(NamedTuple):
    """Client n owns the samples `order[offsets[n]:offsets[n + 1]]`: int64 `[samples]` and `[clients + 1]`."""

    order: Index
    offsets: Index


@dataclass(frozen=True, eq=False)
class Partition:
    """Disjoint shards of the training and of the test samples; every sample is in exactly one."""

    train: Shards
    test: Shards


def partition(
    labels_train: Index,
    labels_test: Index,
    clients: int,
    scheme: Scheme,
    *,
    dirichlet: float,
    labels_per_client: int,
    seed: int,
) -> Partition:
    """Deal every sample to one of `clients`. Every training shard has a sample; a test shard may be empty.

    - iid: shuffled, then cut into equal runs.
    - dirichlet: each class goes to the clients in shares drawn from Dir(dirichlet · 1), class by class
      (Yurochkin et al. 2019, as in NIID-Bench, Li et al. 2022; not the class mixture per client of Hsu et
      al. 2019, which does not use every sample exactly once). While a client has no sample the whole matrix
      is drawn again, at most `DIRICHLET_DRAWS` times in all.
    - labels: each client holds `labels_per_client` distinct classes, each class has the same number of
      holders (±1), and they share its samples evenly (the label-limited clients of HeteroFL and FedRolex).

    Raises ValueError that names the first client without a training sample and what to change.
    """
    if clients < 1:
        raise ValueError(f"clients is {clients}; it must be at least 1")
    if scheme not in get_args(Scheme):
        raise ValueError(f"partition is {scheme!r}; it must be one of {', '.join(get_args(Scheme))}")
    classes, train = np.unique(labels_train, return_inverse=True)
    unknown = np.setdiff1d(labels_test, classes)
    if unknown.size:
        raise ValueError(f"the test labels hold class {unknown[0]}, of which there is no training sample")
    test = np.searchsorted(classes, labels_test)
    if clients > len(train):
        raise ValueError(
            f"client {len(train)} has no training sample: {clients} clients share {len(train)} samples; "
            "use fewer clients or more data"
        )
    rng = np.random.default_rng(seed)
    if scheme == "iid":
        return Partition(_equal_runs(len(train), clients, rng), _equal_runs(len(test), clients, rng))

    totals = np.bincount(train, minlength=len(classes))
    if scheme == "dirichlet":
        counts = _dirichlet_counts(totals, clients, dirichlet, rng)
    else:
        counts = _apportion(_label_shares(len(classes), clients, labels_per_client, rng), totals, rng)
    empty = np.flatnonzero(counts.sum(axis=0) == 0)
    if empty.size:
        change = "a larger dirichlet" if scheme == "dirichlet" else "more labels_per_client"
        raise ValueError(
            f"client {empty[0]} has no training sample in the {scheme} split; use fewer clients or {change}"
        )
    test_counts = _apportion(counts / totals[:, None], np.bincount(test, minlength=len(classes)), rng)
    return Partition(_deal(train, counts, rng), _deal(test, test_counts, rng))


def _equal_runs(samples: int, clients: int, rng: np.random.Generator) -> Shards:
    return Shards(rng.permutation(samples), np.arange(clients + 1, dtype=np.int64) * samples // clients)


def _dirichlet_counts(totals: Index, clients: int, alpha: float, rng: np.random.Generator) -> Index:
    if not (alpha > 0 and math.isfinite(alpha)):
        raise ValueError(f"dirichlet is {alpha}; it must be a positive number")
    for _ in range(DIRICHLET_DRAWS):
        shares = rng.dirichlet(np.full(clients, alpha), size=len(totals))
        counts = _apportion(shares, totals, rng)
        if counts.sum(axis=0).all():
            break
    return counts


def _label_shares(classes: int, clients: int, labels: int, rng: np.random.Generator) -> Shares:
    """Who holds which class, as shares `[classes, clients]`.

    A block is the fewest clients that can hold every class equally often; each block is dealt the classes
    round a circle of its own random order, so that no client gets the same class twice.
    """
    if not 1 <= labels <= classes:
        raise ValueError(f"labels_per_client is {labels}; it must be from 1 to the {classes} classes")
    if clients * labels < classes:
        raise ValueError(
            f"labels_per_client is {labels}, with which {clients} clients cannot hold all {classes} classes; "
            f"it must be at least {math.ceil(classes / clients)}"
        )
    block = classes // math.gcd(classes, labels)
    client = np.arange(clients)
    circles = rng.permuted(np.tile(np.arange(classes), (math.ceil(clients / block), 1)), axis=1)
    handles = (client[:, None] % block * labels + np.arange(labels)) % classes
    held = circles[(client // block)[:, None], handles]  # [clients, labels]
    holds = np.zeros((classes, clients))
    holds[held.T, client] = 1.0
    shares: Shares = holds / holds.sum(axis=1, keepdims=True)
    return shares


def _apportion(shares: Shares, totals: Index, rng: np.random.Generator) -> Index:
    """Counts `[classes, clients]` that sum to `totals` over clients, each within one of `shares · totals`.

    Systematic sampling: each class starts at a random offset, so that rounding does not favour the same
    clients.
    """
    bounds = np.cumsum(shares, axis=1)
    bounds[:, -1] = 1.0
    starts = rng.random((len(totals), 1))
    return np.diff(np.floor(bounds * totals[:, None] + starts), axis=1, prepend=0.0).astype(np.int64)


def _deal(classes: Index, counts: Index, rng: np.random.Generator) -> Shards:
    """Give client n `counts[c, n]` random samples of every class c."""
    by_class = rng.permutation(len(classes))
    by_class = by_class[np.argsort(classes[by_class], kind="stable")]
    owner = np.repeat(np.tile(np.arange(counts.shape[1]), len(counts)), counts.ravel())
    offsets = np.concatenate(([0], np.cumsum(counts.sum(axis=0))))
    return Shards(by_class[np.argsort(owner, kind="stable")], offsets)
