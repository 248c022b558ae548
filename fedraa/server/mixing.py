"""Mixing of a client's parameters, a delta or a mean into the model, in place. This module does not import torch."""

from typing import Protocol

import numpy as np

from fedraa.messages import Index, Vector
from fedraa.vectors.chunked import add_scaled, map_chunks, scale_chunk
from fedraa.vectors.index_ranges import CoordinateSet, index_of, iterate_parts


def blend_weights(params: Vector, where: CoordinateSet, new: Vector, mix: float) -> None:
    """Mix trained weights into the model in place: theta <- (1 - mix) theta + mix theta_new.

    Several calls for parts of the coordinates give the same bits as one call.

    Args:
        params: Parameters [d], changed in place.
        where: Coordinates [k] to change.
        new: Trained weights [k].
        mix: Weight of the trained weights.
    """
    old_weight = np.float32(1 - mix)
    new_weight = np.float32(mix)

    def mix_piece(piece: slice) -> None:
        change = scale_chunk(new_weight, new[piece])
        for values, part in iterate_parts(params, where, piece):
            values *= old_weight
            values += change[part].reshape(values.shape)

    map_chunks(len(new), mix_piece)


def add_delta(
    params: Vector,
    where: CoordinateSet,
    weight: float,
    new: Vector,
    sent: Vector | None,
    common: Index | None,
    shared_weight: float,
) -> None:
    """Add a delta to the model in place: theta <- theta + weight * (new - sent).

    Args:
        params: Parameters [d], changed in place.
        where: Coordinates [k] to change.
        weight: Weight of the delta.
        new: Trained weights [k], or the delta if `sent` is None.
        sent: Weights [k] that the client received.
        common: Positions, in `new` and `sent`, of the coordinates that all fragments contain.
        shared_weight: Factor of the weight on the coordinates of `common`.
    """
    if common is None or not len(common):
        add_scaled(params, where, weight, new, sent)
        return
    places = common
    coordinates = index_of(where)
    if not isinstance(coordinates, slice):
        places = coordinates[common]
    change = new[common]
    if sent is not None:
        change -= sent[common]
    shared = params[places] + np.float32(weight * shared_weight) * change
    add_scaled(params, where, weight, new, sent)
    params[places] = shared


class RunningMean(Protocol):
    """A running mean of a model's versions."""

    @property
    def params(self) -> Vector:
        """The current mean [d]."""

    def follow(self, share: float) -> None:
        """Update the mean: mean <- mean + share * (theta - mean)."""

    def restore(self, params: Vector) -> None:
        """Set the mean [d]."""


class HasParams(Protocol):
    """An object with a model: a server or a store."""

    @property
    def params(self) -> Vector:
        """The current full model [d]."""


class LocalMean:
    """A running mean in the same process as the model."""

    def __init__(self, model: HasParams) -> None:
        self._model = model
        self.params = model.params.copy()

    def follow(self, share: float) -> None:
        update_mean(self.params, self._model.params, share)

    def restore(self, params: Vector) -> None:
        self.params[:] = params


def update_mean(mean: Vector, params: Vector, share: float) -> None:
    """Update the mean in place: mean <- mean + share * (params - mean).

    Several calls for parts of the coordinates give the same bits as one call.

    Args:
        mean: The mean [d].
        params: The model [d].
        share: Weight of the model.
    """
    add_scaled(mean, slice(None), share, params, mean)
