"""Memory that is used again every round: new memory from the system costs more than what is done with it."""

from typing import Any
from weakref import ref

import numpy as np
import numpy.typing as npt

from fedraa.vectors.chunked import over


class Room:
    """Gives arrays [size]; the memory of the last one again, once nobody has it or a part of it."""

    def __init__(self, size: int, kind: type[np.int32] | type[np.float32] | type[np.bool_]) -> None:
        self._size, self._kind = size, kind
        self._memory: memoryview | None = None
        self._last: ref[Any] | None = None

    def filled(self, value: int) -> npt.NDArray[Any]:
        """An array of that value."""
        array = self.last()
        if array is None:
            self._memory = (
                np.full(self._size, value, self._kind).data if value else np.zeros(self._size, self._kind).data
            )
            return self._given(self._memory)
        over(self._size, lambda piece: array[piece].fill(value))
        return array

    def last(self) -> npt.NDArray[Any] | None:
        """The last array as it was left; None if there is none, or somebody has it."""
        if self._memory is None or (self._last is not None and self._last() is not None):
            return None
        return self._given(self._memory)

    def _given(self, memory: memoryview) -> npt.NDArray[Any]:
        array = np.frombuffer(memory, self._kind)
        self._last = ref(array)  # which its views keep: they are of no other array, but of the memory behind it
        return array
