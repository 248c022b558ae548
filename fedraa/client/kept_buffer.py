"""The declaration of values that a client keeps from one task to the next."""

from dataclasses import dataclass
from numbers import Integral
from typing import Literal

import numpy as np

from fedraa.errors import InputError
from fedraa.messages import KEPT_PREFIX, Index, Vector
from fedraa.numbers import MAX_FLOAT32


@dataclass(frozen=True, eq=False)
class KeptBuffer:
    """Values that each client keeps from one task to the next.

    A real client would keep them itself, so they are not counted as traffic. Here the server stores them, and tasks and
    updates carry them.

    Attributes:
        name: The name of the buffer.
        start: The initial values: a number, `model` for the initial model, or `received` for the weights that the
            client receives. A buffer with a `size` may also start from an array [size].
        size: The number of values. None means one value per parameter of the model, or per entry of `coordinates`. A
            task then carries only the values of the coordinates that it trains.
        coordinates: The coordinates of the model that have a value, in ascending order; None for all.

    Raises:
        InputError: A value has the wrong type, or `start` does not fit `size`.
    """

    name: str
    start: float | Vector | Literal["model", "received"] = 0.0
    size: int | None = None
    coordinates: Index | None = None

    def __post_init__(self) -> None:
        if not isinstance(self.name, str):
            raise InputError("kept: name", got=self.name, expected="text")
        if self.size is not None and (not isinstance(self.size, Integral) or self.size < 1):
            raise InputError(f"kept: {self.name}.size", got=self.size, expected="a whole number from 1, or None")
        if self.coordinates is not None and not _is_index(self.coordinates):
            expected = "an array of whole numbers, or None"
            raise InputError(f"kept: {self.name}.coordinates", got=self.coordinates, expected=expected)
        fits = np.shape(self.start) in ((), (self.size,))
        expected = "a number, model or received"
        if self.size is not None:
            expected = f"a number or an array of {self.size} numbers"
        if isinstance(self.start, str):
            fits = self.size is None and self.start in ("model", "received")
        elif np.asarray(self.start).dtype.kind not in "biuf" or np.any(np.abs(self.start) > MAX_FLOAT32):
            fits = False
        if not fits:
            raise InputError(f"kept: {self.name}.start", got=self.start, expected=expected)

    @property
    def key(self) -> str:
        """The name of the buffer in tasks and updates."""
        return KEPT_PREFIX + self.name

    def count(self, parameters: int) -> int:
        """Return the number of values that each client keeps of a model with this number of parameters."""
        if self.size is not None:
            return self.size
        if self.coordinates is not None:
            return len(self.coordinates)
        return parameters


def _is_index(value: object) -> bool:
    return isinstance(value, np.ndarray) and value.ndim == 1 and value.dtype.kind in "iu"


# The weights of the personal layers, which stay at each client. Each run sets the attribute `coordinates`.
PERSONAL_LAYERS = KeptBuffer("personal_layers", "model")
