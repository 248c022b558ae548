"""HeteroFL's mask of the output layer: a client sends only the output rows of labels in its data."""

import numpy as np
import numpy.typing as npt

from fedraa.data import Federated
from fedraa.errors import InputError
from fedraa.submodels import Traced
from fedraa.submodels.assignment import Mask
from fedraa.submodels.flat import frozen_parameters
from fedraa.vectors.reusable_buffer import ReusableBuffer


def labels_held(data: Federated, classes: int) -> npt.NDArray[np.bool_]:
    """Return a mask [clients, classes]: True if training samples of the client have the label."""
    held = np.zeros((len(data.sizes), classes), bool)
    labels = data.y_train if data.source is None else data.labels
    if labels is None:
        # Generated samples have unknown labels, so every client counts as having all labels.
        return np.ones((len(data.sizes), classes), bool)
    held[np.repeat(np.arange(len(data.sizes)), data.sizes), labels] = True
    return held


class LabelOwners:
    """A function from a client to the mask [d] of the coordinates that it may send.

    The mask excludes the output rows of labels that the client's data lack. The output layer is the last weight with
    one row per class, and the bias that follows it. If it is frozen, the mask excludes nothing.
    """

    def __init__(self, traced: Traced, held: npt.NDArray[np.bool_]) -> None:
        self._labels_held = held
        self._room = ReusableBuffer(traced.size, np.bool_)
        classes = held.shape[1]
        layers = zip(traced.names, traced.shapes, traced.offsets, strict=True)
        rows = [
            (offset, int(np.prod(shape)) // classes)
            for name, shape, offset in layers
            if shape[:1] == (classes,) and 0 not in traced.units.get(name, {})
        ]
        last_weight = max((i for i, (_, width) in enumerate(rows) if width > 1), default=None)
        if last_weight is None and frozen_parameters(traced.module):
            last_weight = len(rows)
        if last_weight is None:
            raise InputError("model", f"it has no output layer of {classes} rows", got=traced.module)
        self._rows = rows[last_weight:]

    def __call__(self, client: int) -> Mask:
        # All clients share one array, because only the output rows differ.
        mask: Mask | None = self._room.last()
        if mask is None:
            mask = self._room.filled(True)
        held = self._labels_held[client]
        for offset, width in self._rows:
            mask[offset : offset + len(held) * width] = np.repeat(held, width)
        return mask
