"""A mean over the versions of a model, kept where the model is."""

from typing import Protocol

from fedraa.messages import Vector
from fedraa.vectors.chunked import accumulate


class Mean(Protocol):
    """A mean over a model's versions, where the model is."""

    @property
    def params(self) -> Vector:
        """The mean [d] as it stands."""

    def follow(self, share: float) -> None:
        """mean <- mean + share * (theta - mean)."""

    def restore(self, params: Vector) -> None:
        """Become that."""


class Held(Protocol):
    """Who has a model: a server, or what keeps its parameters."""

    @property
    def params(self) -> Vector:
        """The full model [d] as it stands."""


class MeanHere:
    """A mean that is kept in this process, as the model is."""

    def __init__(self, model: Held) -> None:
        self._model = model
        self.params = model.params.copy()

    def follow(self, share: float) -> None:
        follow(self.params, self._model.params, share)

    def restore(self, params: Vector) -> None:
        self.params[:] = params


def follow(mean: Vector, params: Vector, share: float) -> None:
    """mean <- mean + share * (params - mean), in place; element by element, so however it is divided among calls."""
    accumulate(mean, slice(None), share, params, mean)
