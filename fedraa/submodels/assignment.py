"""What one client is given to train: a dense part of the model and, for element-wise methods, a mask over it."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from typing import Any

import numpy as np
import numpy.typing as npt

from fedraa.messages import Index, Vector
from fedraa.submodels.traced import IndexSet, Traced

Mask = npt.NDArray[np.bool_]
BITS = 8  # coordinates per byte of a bitmap
FEW_RUNS = 1000  # of a mask, so long that each is worth a pass of its own


@dataclass(frozen=True, eq=False)
class Submodel:
    """A part of the model: its shape and where its buffer is in the full vector (None: all of it)."""

    widths: tuple[int, ...]
    index: Index | None

    @classmethod
    def of(cls, traced: Traced, kept: IndexSet) -> "Submodel":
        widths = traced.widths(kept)
        whole = widths == tuple(group.size for group in traced.groups)
        return cls(widths, None if whole else traced.flat_index(kept))

    def take(self, params: npt.NDArray[np.generic]) -> Vector:
        """A copy of the part's coordinates [k] of a full vector [d]."""
        return params.astype(np.float32) if self.index is None else params[self.index].astype(np.float32, copy=False)


@dataclass(frozen=True, eq=False)
class Assignment:
    """What one client trains: a dense part and, for element-wise methods, a mask [k] over it.

    `label` stands for the choice in the log. `sends_mask`: the server masks before it sends; otherwise the
    client gets the whole part and masks it itself (RA-Fed, SubDisMO).
    """

    label: int
    submodel: Submodel
    mask: Mask | None = None
    sends_mask: bool = True

    @property
    def where(self) -> Index | slice:
        """The coordinates of the full vector that are trained."""
        if self.mask is None:
            return slice(None) if self.submodel.index is None else self.submodel.index
        return np.flatnonzero(self.mask) if self.submodel.index is None else self.submodel.index[self.mask]

    def trained(self, buffer: Vector) -> Vector:
        """The trained coordinates of a buffer [k] of the part, in the order of `where`."""
        return buffer if self.mask is None else buffer[self.mask]

    def packed(self, buffer: Vector) -> Vector:
        """As `trained`; the buffer may be used up, and what is returned may be a part of it."""
        if self._runs is None:
            return self.trained(buffer)
        end = 0
        for run in self._runs:  # each moves to the left, over what has moved already
            length = run.stop - run.start
            if end < run.start:
                buffer[end : end + length] = buffer[run]
            end += length
        return buffer[:end]

    def pieces(self, trained: Vector) -> list[tuple[Index | slice, slice]]:
        """Where in the full vector the values `trained` are, and where among them, in few pieces.

        A mask with long runs, such as one of output rows, needs no index of each coordinate.
        """
        if not self._runs:
            return [(self.where, slice(0, len(trained)))]
        found, end = [], 0
        for run in self._runs:
            length = run.stop - run.start
            found.append((run if self.submodel.index is None else self.submodel.index[run], slice(end, end + length)))
            end += length
        return found

    @cached_property
    def _runs(self) -> list[slice] | None:
        """The coordinates of the part that are trained, as runs; None without a mask, or if they are many."""
        if self.mask is None:
            return None
        edges = np.flatnonzero(self.mask[1:] != self.mask[:-1]) + 1
        if len(edges) > min(FEW_RUNS, len(self.mask) // FEW_RUNS):
            return None
        ends = [0, *edges.tolist(), len(self.mask)]
        return [slice(first, last) for first, last in pairwise(ends) if last > first and self.mask[first]]

    def state(self) -> dict[str, object]:
        return {
            "label": self.label,
            "widths": list(self.submodel.widths),
            "index": self.submodel.index,
            "mask": self.mask,
            "sends_mask": self.sends_mask,
        }

    @classmethod
    def restored(cls, state: Mapping[str, Any]) -> "Assignment":
        submodel = Submodel(tuple(state["widths"]), state["index"])
        return cls(state["label"], submodel, state["mask"], state["sends_mask"])

    def bytes(self, coordinates: int, sent_back: Callable[[int], int], sent: Callable[[int], int]) -> tuple[int, int]:
        """Bytes down and up for a part of so many coordinates: where masked, a share of it and a bitmap.

        `sent_back` gives the bytes in which so many trained coordinates are sent back, `sent` those down.
        """
        if self.mask is None:
            return sent(coordinates), sent_back(coordinates)
        trained, bitmap = int(self.mask.sum()), -(-len(self.mask) // BITS)
        down = sent(trained) + bitmap if self.sends_mask else sent(coordinates)
        return down, sent_back(trained) + bitmap
