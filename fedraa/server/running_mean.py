"""Running means of a model's versions, for Polyak averaging."""

from typing import Protocol

from fedraa.messages import Vector
from fedraa.vectors.chunked import add_scaled


class RunningMean(Protocol):
    """A running mean of a model's versions."""

    @property
    def params(self) -> Vector:
        """The current mean [d]."""

    def follow(self, share: float) -> None:
        """Update the mean: mean <- mean + share * (theta - mean). theta is the current model."""

    def restore(self, params: Vector) -> None:
        """Set the mean [d]."""


class HasParams(Protocol):
    """An object with a model, such as a server or a store."""

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
