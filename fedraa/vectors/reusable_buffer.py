"""Reuse of an array's memory in every round. The allocation of new memory takes longer than filling it."""

from typing import Any
from weakref import ref

import numpy as np
import numpy.typing as npt

from fedraa.vectors.chunked import map_chunks


class ReusableBuffer:
    """A source of arrays [size]. If the last array is no longer in use, the next one uses its memory."""

    def __init__(self, size: int, kind: type[np.int32] | type[np.float32] | type[np.bool_]) -> None:
        self._size = size
        self._kind = kind
        self._memory: memoryview | None = None
        self._last: ref[Any] | None = None

    def filled(self, value: int) -> npt.NDArray[Any]:
        """Return an array filled with `value`."""
        array = self.last()
        if array is None:
            # New memory contains zeros.
            memory = np.zeros(self._size, self._kind)
            if value:
                memory.fill(value)
            self._memory = memory.data
            return self._wrap_memory(self._memory)
        map_chunks(self._size, lambda piece: array[piece].fill(value))
        return array

    def last(self) -> npt.NDArray[Any] | None:
        """Return an array with the memory and values of the last array.

        Return None if the last array is still in use, or if there is no last array.
        """
        if self._memory is None or (self._last is not None and self._last() is not None):
            return None
        return self._wrap_memory(self._memory)

    def _wrap_memory(self, memory: memoryview) -> npt.NDArray[Any]:
        """Return an array over the memory. Keep a weak reference, which shows if the array is still in use."""
        array = np.frombuffer(memory, self._kind)
        # A view keeps the array alive, so the weak reference is valid as long as the array or a view is in use.
        self._last = ref(array)
        return array
