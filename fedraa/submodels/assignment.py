"""Assignments. An assignment is the set of the model's parameters that one client trains."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from fedraa.messages import Index, Mask, Vector
from fedraa.submodels.traced import IndexSet, Traced

COORDINATES_PER_BYTE = 8


@dataclass(frozen=True, eq=False)
class Submodel:
    """A smaller dense model, which has only some units of the full model.

    Attributes:
        widths: Number of kept units of each width group (a layer, or layers that are cut together).
        index: Indices [k] of the submodel's parameters in the full flat vector. None means all.
    """

    widths: tuple[int, ...]
    index: Index | None

    @classmethod
    def of(cls, traced: Traced, kept: IndexSet) -> "Submodel":
        """Return the submodel that keeps these units of each width group (a layer, or layers that are cut together)."""
        widths = traced.widths(kept)
        whole = widths == tuple(group.size for group in traced.groups)
        return cls(widths, None if whole else traced.flat_index(kept))

    def take(self, params: npt.NDArray[np.generic]) -> Vector:
        """Return a copy of the submodel's parameters [k] from a full flat vector [d]."""
        if self.index is None:
            return params.astype(np.float32)
        return params[self.index].astype(np.float32, copy=False)


@dataclass(frozen=True, eq=False)
class Assignment:
    """The parameters that one client trains: all k parameters of a submodel, or those that a mask selects.

    Attributes:
        label: A number that identifies the assignment in the log.
        submodel: The dense submodel.
        mask: True for the parameters [k] that the client trains. None if it trains all.
        sends_mask: True if the server sends only the parameters in the mask. Otherwise it sends the whole submodel, and
            the client applies the mask (RA-Fed, SubDisMO).
        keeps_rest: True if parameters outside of the mask keep the values that the client received. If False, they are
            0 while the client trains.
        mask_by_label: True if `label` determines the mask. The bitmap of the mask is then not sent.
        work: FLOPs of a task, divided by the FLOPs for training the whole submodel.
        by_size: True if tasks are comparable when their submodels have the same number of parameters. A sampled dense
            submodel sets it, because its label can change in every round. False if tasks with the same label are.
    """

    label: int
    submodel: Submodel
    mask: Mask | None = None
    sends_mask: bool = True
    keeps_rest: bool = False
    mask_by_label: bool = False
    work: float = 1.0
    by_size: bool = False

    @property
    def where(self) -> Index | slice:
        """Return the indices of the trained parameters in the full flat vector."""
        index = self.submodel.index
        if self.mask is None:
            return slice(None) if index is None else index
        kept = np.flatnonzero(self.mask)
        if index is None:
            return kept
        return index[kept]

    def trained(self, buffer: Vector) -> Vector:
        """Return the entries of a submodel's vector [k] that belong to trained parameters. Their order is kept."""
        if self.mask is None:
            return buffer
        return buffer[self.mask]

    def restrict(self, allowed: Mask) -> "Assignment":
        """Return the assignment without the parameters that are False in `allowed` [d]."""
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
            "by_size": self.by_size,
        }

    @classmethod
    def restored(cls, state: Mapping[str, Any]) -> "Assignment":
        submodel = Submodel(tuple(state["widths"]), state["index"])
        return cls(
            submodel=submodel, **{name: value for name, value in state.items() if name not in ("widths", "index")}
        )

    def bytes(self, coordinates: int, sent_back: Callable[[int], int], sent: Callable[[int], int]) -> tuple[int, int]:
        """Return the bytes that the server sends to the client for one task, and the bytes that the client sends back.

        Without a mask, server and client send the whole submodel. With a mask, the client sends only the trained
        parameters. It also sends the mask as a bitmap, unless `mask_by_label` is True. If `sends_mask` is True, the
        server sends the same parameters and bitmap. Otherwise, it sends the whole submodel.

        Args:
            coordinates: Number of parameters of the submodel.
            sent_back: A function from a number of parameters to the bytes in which a client sends them.
            sent: A function from a number of parameters to the bytes in which the server sends them.
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
