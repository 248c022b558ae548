"""HeteroFL's mask of the output layer: a client sends the output row of a label only if its data have this label."""

import numpy as np
import numpy.typing as npt

from fedraa.data import Federated
from fedraa.errors import InputError
from fedraa.messages import Mask
from fedraa.submodels import Traced
from fedraa.submodels.flat import frozen_parameters, layer_of
from fedraa.vectors.reusable_buffer import ReusableBuffer


def labels_held(data: Federated, classes: int) -> npt.NDArray[np.bool_]:
    """Return a mask [clients, classes]: True if a training sample of the client has the label."""
    held = np.zeros((len(data.sizes), classes), bool)
    labels = data.y_train if data.source is None else data.labels
    if labels is None:
        # The labels of generated samples are unknown, so a client may have every label.
        return np.ones((len(data.sizes), classes), bool)
    held[np.repeat(np.arange(len(data.sizes)), data.sizes), labels] = True
    return held


class LabelOwners:
    """A function from a client to a mask [d] of the parameters that the client may send.

    The mask excludes the output row of each label that the client's data lack. The output layer is the last weight with
    one row per class, the other parameters of its module with one row per class, and a bias after this weight. If the
    output layer is frozen, the mask excludes nothing.
    """

    def __init__(self, traced: Traced, held: npt.NDArray[np.bool_]) -> None:
        self._labels_held = held
        self._room = ReusableBuffer(traced.size, np.bool_)
        classes = held.shape[1]
        layers = zip(traced.shapes, traced.places.items(), strict=True)
        rows = [
            (layer_of(name), place.start, (place.stop - place.start) // classes)
            for shape, (name, place) in layers
            if shape[:1] == (classes,) and 0 not in traced.units.get(name, {})
        ]
        last_weight = max((i for i, (_, _, width) in enumerate(rows) if width > 1), default=None)
        if last_weight is None and frozen_parameters(traced.module):
            last_weight = len(rows)
        if last_weight is None:
            raise InputError("model", f"it has no output layer of {classes} rows", got=traced.module)
        output = {layer for layer, _, _ in rows[last_weight : last_weight + 1]}
        self._rows = [
            (start, width) for i, (layer, start, width) in enumerate(rows) if i >= last_weight or layer in output
        ]

    def __call__(self, client: int) -> Mask:
        # A call can reuse the last mask: the loop below overwrites the output rows, and other values are always True.
        mask: Mask | None = self._room.last()
        if mask is None:
            mask = self._room.filled(True)
        held = self._labels_held[client]
        for offset, width in self._rows:
            mask[offset : offset + len(held) * width] = np.repeat(held, width)
        return mask
