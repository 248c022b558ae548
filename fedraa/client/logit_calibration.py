"""Shift of the logits by the label frequencies of a client (logit adjustment, Menon et al. 2021)."""

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor


def log_prior(
    shards: Sequence[npt.NDArray[np.int64]], classes: int, share: float, label_shares: tuple[float, ...] | None
) -> Tensor:
    """Return log((share * p + (1 - share) * q) / q) for each client and label, float32 [shards, classes].

    A frequency of 0 counts as the frequency of 0.001 samples, because log(0) is infinite.

    Args:
        shards: The labels of each client's samples.
        classes: Number of classes.
        share: Weight of the client's label frequencies p, from 0 to 1.
        label_shares: The label frequencies q of all clients; None for equal frequencies.
    """
    at_client = np.stack([np.bincount(y, minlength=classes) / len(y) for y in shards])
    at_all = np.full(classes, 1 / classes)
    if label_shares is not None:
        at_all = np.zeros(classes)
        at_all[: len(label_shares)] = label_shares
    floor = np.array([[1e-3 / len(y)] for y in shards])
    mixed = np.maximum(share * at_client + (1 - share) * at_all, floor)
    return torch.from_numpy(np.log(mixed / np.maximum(at_all, floor)).astype(np.float32))
