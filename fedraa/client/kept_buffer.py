"""The declaration of values that a client keeps from one task to the next."""

from dataclasses import dataclass
from typing import Literal

from fedraa.messages import KEPT_PREFIX, Index, Vector


@dataclass(frozen=True, eq=False)
class KeptBuffer:
    """Values that each client keeps from one task to the next.

    The server stores these values. A task carries them to the worker, and the task's update carries them back.

    Attributes:
        name: The name of the buffer.
        start: The initial values, for coordinates that the client has never trained: a number, `model` for the initial
            model, or `received` for the weights that the client receives with the task. A buffer with a `size` may also
            start from an array [size].
        size: The number of values. None means one value for each parameter of the model (d), or for each of
            `coordinates`. A task then carries and changes only the values of the coordinates that it trains.
        coordinates: The coordinates of the model, ascending, that have a value; None for all.
    """

    name: str
    start: float | Vector | Literal["model", "received"] = 0.0
    size: int | None = None
    coordinates: Index | None = None

    @property
    def key(self) -> str:
        """The name of the buffer in tasks and updates."""
        return KEPT_PREFIX + self.name

    def count(self, parameters: int) -> int:
        """Return the number of values that each client keeps if the model has `parameters` parameters."""
        if self.size is not None:
            return self.size
        if self.coordinates is not None:
            return len(self.coordinates)
        return parameters


# The weights of the personal layers, which stay at each client. A run sets their coordinates.
PERSONAL_LAYERS = KeptBuffer("personal_layers", "model")
