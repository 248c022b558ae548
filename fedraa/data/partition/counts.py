"""Functions that round fractions of classes to numbers of samples, and draw these samples at random."""

import numpy as np
import numpy.typing as npt

from fedraa.messages import Index

Shares = npt.NDArray[np.float64]


def apportion_classes(shares: Shares, totals: Index, rng: np.random.Generator) -> Index:
    """Round `shares * totals` to integers [classes, clients] with the sum `totals` over the clients.

    Rounding changes each number by less than one. The rounding of each class starts at a random offset (systematic
    sampling). It therefore favours no client.

    Args:
        shares: The fraction of each class for each client, `[classes, clients]`. Each row sums to 1.
        totals: The number of samples of each class, `[classes]`.
        rng: The source of random numbers.
    """
    bounds = np.cumsum(shares, axis=1)
    bounds[:, -1] = 1.0
    starts = rng.random((len(totals), 1))
    return np.diff(np.floor(bounds * totals[:, None] + starts), axis=1, prepend=0.0).astype(np.int64)


def draw_by_counts(classes: Index, counts: Index, rng: np.random.Generator) -> tuple[Index, Index]:
    """Draw random samples for each client. Return them in client order, and the offsets of the clients.

    Args:
        classes: The class of each sample, `[samples]`.
        counts: The numbers of samples `[classes, clients]`: client n gets `counts[c, n]` samples of class c.
        rng: The source of random numbers.
    """
    by_class = rng.permutation(len(classes))
    by_class = by_class[np.argsort(classes[by_class], kind="stable")]
    owner = np.repeat(np.tile(np.arange(counts.shape[1]), len(counts)), counts.ravel())
    offsets = np.concatenate(([0], np.cumsum(counts.sum(axis=0))))
    return by_class[np.argsort(owner, kind="stable")], offsets
