"""The part of the model that one client trains: a dense submodel and, for element-wise methods, a mask over it."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from fedraa.messages import Index, Vector
from fedraa.submodels.traced import IndexSet, Traced

Mask = npt.NDArray[np.bool_]
# Number of coordinates in one byte of a bitmap.
COORDINATES_PER_BYTE = 8


@dataclass(frozen=True, eq=False)
class Submodel:
    """A dense part of the model.

    `widths` has the number of kept units of each width group. `index` has the indices [k] of its coordinates in the
    full vector; None means all coordinates.
    """

    widths: tuple[int, ...]
    index: Index | None

    @classmethod
    def of(cls, traced: Traced, kept: IndexSet) -> "Submodel":
        """Return the submodel that keeps these units of each width group."""
        widths = traced.widths(kept)
        whole = widths == tuple(group.size for group in traced.groups)
        return cls(widths, None if whole else traced.flat_index(kept))

    def take(self, params: npt.NDArray[np.generic]) -> Vector:
        """Return a copy of the submodel's coordinates [k] from a full vector [d]."""
        if self.index is None:
            return params.astype(np.float32)
        return params[self.index].astype(np.float32, copy=False)


@dataclass(frozen=True, eq=False)
class Assignment:
    """The part of the model that one client trains: a dense submodel and, for element-wise methods, a mask [k] over it.

    Attributes:
        label: A number for the assignment, which the log shows.
        submodel: The dense submodel.
        mask: True for the coordinates [k] that the client trains; None if it trains all.
        sends_mask: True if the server sends only the masked submodel. Otherwise the client receives the whole submodel
            and masks it (RA-Fed, SubDisMO).
        keeps_rest: True if weights outside of the mask keep the values that the client received. False if they are 0
            while the client trains.
        mask_by_label: True if `label` determines the mask, so that no bitmap of the mask is sent.
        work: FLOPs of a task, as a share of the FLOPs for training the whole dense submodel.
    """

    label: int
    submodel: Submodel
    mask: Mask | None = None
    sends_mask: bool = True
    keeps_rest: bool = False
    mask_by_label: bool = False
    work: float = 1.0

    @property
    def where(self) -> Index | slice:
        """Return the indices of the trained coordinates in the full vector."""
        index = self.submodel.index
        if self.mask is None:
            return slice(None) if index is None else index
        kept = np.flatnonzero(self.mask)
        if index is None:
            return kept
        return index[kept]

    def trained(self, buffer: Vector) -> Vector:
        """Return the trained coordinates of a buffer [k] of the submodel, in the order of `where`."""
        if self.mask is None:
            return buffer
        return buffer[self.mask]

    def restrict(self, allowed: Mask) -> "Assignment":
        """Return the assignment with only those coordinates that are in `allowed` [d], because others are not sent."""
        mask = allowed
        if self.submodel.index is not None:
            mask = mask[self.submodel.index]
        if mask.all():
            return self
        if self.mask is not None:
            mask = self.mask & mask
        return replace(self, mask=mask)

    def state(self) -> dict[str, object]:
        return {
            "label": self.label,
            "widths": list(self.submodel.widths),
            "index": self.submodel.index,
            "mask": self.mask,
            "sends_mask": self.sends_mask,
            "keeps_rest": self.keeps_rest,
            "mask_by_label": self.mask_by_label,
            "work": self.work,
        }

    @classmethod
    def restored(cls, state: Mapping[str, Any]) -> "Assignment":
        submodel = Submodel(tuple(state["widths"]), state["index"])
        return cls(
            submodel=submodel, **{name: value for name, value in state.items() if name not in ("widths", "index")}
        )

    def bytes(self, coordinates: int, sent_back: Callable[[int], int], sent: Callable[[int], int]) -> tuple[int, int]:
        """Return the bytes that one task sends down and up.

        A client with a mask sends the trained coordinates and a bitmap of the mask. With `sends_mask` the server sends
        the same, otherwise it sends all coordinates of the submodel. With `mask_by_label` no bitmap is sent.

        Args:
            coordinates: Number of coordinates of the submodel.
            sent_back: A function of a number of coordinates. It returns the bytes that a client sends for them.
            sent: A function of a number of coordinates. It returns the bytes that the server sends for them.
        """
        if self.mask is None:
            return sent(coordinates), sent_back(coordinates)
        trained = int(self.mask.sum())
        bitmap = 0
        if not self.mask_by_label:
            bitmap = -(-len(self.mask) // COORDINATES_PER_BYTE)
        up = sent_back(trained) + bitmap
        if not self.sends_mask:
            return sent(coordinates), up
        return sent(trained) + bitmap, up
