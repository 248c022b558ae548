"""Compressors C(.) of what a client sends back: its delta, w - w_received, on the coordinates that it trained."""

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import torch
from torch import Tensor

from fedraa.components.calls import calling
from fedraa.components.registry import Seam
from fedraa.errors import short_text
from fedraa.numbers import Share

LEVELS = 255
TAKES = "is none of none, 8bit or topk:SHARE with a share over 0 and at most 1"


class Compressor(ABC):
    """How a client sends its delta back. Both methods must be functions of their arguments alone.

    A `lossless` one is not applied at all; one that `drops` entries has them arrive as 0.
    """

    lossless: ClassVar[bool] = False
    drops: ClassVar[bool] = False

    @abstractmethod
    def apply(self, delta: Tensor) -> Tensor:
        """The delta [k] as it arrives: compressed and decoded."""

    @abstractmethod
    def bytes(self, coordinates: int) -> int:
        """Bytes on the wire for a delta of so many coordinates, for the bill."""


def wire_bytes(compressor: Compressor, coordinates: int) -> int:
    """Bytes on the wire for a delta of so many coordinates; ValueError if a compressor does not say so."""
    with calling("compress", compressor):
        said = compressor.bytes(coordinates)
    if isinstance(said, bool) or not isinstance(said, int | np.integer) or said < 0:
        who = type(compressor).__name__
        raise ValueError(
            f"compress: {who} gave {short_text(said)} bytes for {coordinates} coordinates; takes a whole number"
        )
    return int(said)


@dataclass(frozen=True)
class NoCompression(Compressor):
    """As it is, 4 bytes a number."""

    lossless: ClassVar[bool] = True

    def apply(self, delta: Tensor) -> Tensor:
        return delta

    def bytes(self, coordinates: int) -> int:
        return 4 * coordinates


@dataclass(frozen=True)
class TopK(Compressor):
    """The `share` of largest entries, each a number and its position: 8 bytes."""

    share: Share
    drops: ClassVar[bool] = True

    def kept(self, coordinates: int) -> int:
        """How many entries it keeps of so many."""
        return min(coordinates, max(1, round(self.share * coordinates)))

    def apply(self, delta: Tensor) -> Tensor:
        kept = torch.topk(delta.abs(), self.kept(delta.numel()), sorted=False).indices
        return torch.zeros_like(delta).index_copy_(0, kept, delta[kept])

    def bytes(self, coordinates: int) -> int:
        return 8 * self.kept(coordinates)


@dataclass(frozen=True)
class EightBit(Compressor):
    """Uniform quantisation between the extremes: one byte a number, and the two extremes."""

    def apply(self, delta: Tensor) -> Tensor:
        if not delta.numel():
            return delta
        low, high = delta.min(), delta.max()
        step = (high - low) / LEVELS
        return low + torch.round((delta - low) / step.clamp(min=torch.finfo(delta.dtype).tiny)) * step

    def bytes(self, coordinates: int) -> int:
        return coordinates + 8


def _short(text: str) -> Compressor:
    """From `topk:SHARE`."""
    kind, _, number = text.partition(":")
    try:
        share = float(number) if kind == "topk" else 0.0
    except ValueError:
        share = 0.0
    if not 0 < share <= 1:
        raise ValueError(f"compress: {text!r} {TAKES}, or an own one as package.module:Name")
    return TopK(share)


COMPRESSOR: Seam[Compressor] = Seam(
    "compress", ("apply", "bytes"), {"none": NoCompression, "topk": TopK, "8bit": EightBit}, _short
)
