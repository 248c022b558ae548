"""The part of the model that one client trains."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from fedraa.messages import Index, Vector
from fedraa.submodels.traced import IndexSet, Traced

Mask = npt.NDArray[np.bool_]
COORDINATES_PER_BYTE = 8


@dataclass(frozen=True, eq=False)
class Submodel:
    """A dense part of the model.

    Attributes:
        widths: Number of kept units of each width group.
        index: Indices [k] of the submodel's coordinates in the full vector; None for all.
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
    """The part of the model that one client trains: a dense submodel, or some of its k coordinates.

    Attributes:
        label: A number for the assignment, which the log shows.
        submodel: The dense submodel.
        mask: True for the coordinates [k] that the client trains; None if it trains all.
        sends_mask: True if the server sends only the masked coordinates. Otherwise it sends the whole submodel, and the
            client masks it (RA-Fed, SubDisMO).
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
        """Return the trained coordinates of a submodel's buffer [k], in the order of `where`."""
        if self.mask is None:
            return buffer
        return buffer[self.mask]

    def restrict(self, allowed: Mask) -> "Assignment":
        """Return the assignment limited to the coordinates in `allowed` [d]."""
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

        A masked client sends its trained coordinates and, unless `mask_by_label`, a bitmap of the mask. The server
        sends the same with `sends_mask`, otherwise all coordinates of the submodel.

        Args:
            coordinates: Number of coordinates of the submodel.
            sent_back: Returns the bytes in which a client sends a number of coordinates.
            sent: Returns the bytes in which the server sends a number of coordinates.
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
