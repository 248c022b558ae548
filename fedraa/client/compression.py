"""Compressors C(.) of the delta that a client sends back: w - w_received, on the trained coordinates."""

from abc import ABC, abstractmethod
from contextlib import suppress
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import torch
from torch import Tensor

from fedraa.components.calls import convert_errors
from fedraa.components.registry import ComponentRegistry
from fedraa.errors import InputError
from fedraa.numbers import Share

LEVELS = 255
EXPECTED = "none, 8bit, topk:SHARE with a share above 0 and up to 1, or a custom Compressor as package.module:Name"


class Compressor(ABC):
    """A compressor of the delta that a client sends back. Both methods must depend only on their arguments.

    A `lossless` compressor is never applied. A compressor that `drops` entries sets them to 0 at the server.
    """

    lossless: ClassVar[bool] = False
    drops: ClassVar[bool] = False

    @abstractmethod
    def apply(self, delta: Tensor) -> Tensor:
        """Return the delta [k] as the server receives it: compressed and decoded."""

    @abstractmethod
    def bytes(self, coordinates: int) -> int:
        """Return the bytes on the wire for a delta of `coordinates` entries. The counts of traffic use this number."""


def wire_bytes(compressor: Compressor, coordinates: int) -> int:
    """Return the bytes on the wire for a delta of `coordinates` entries. Raises InputError unless this is a number."""
    with convert_errors("compress", compressor):
        size = compressor.bytes(coordinates)
    if isinstance(size, bool) or not isinstance(size, int | np.integer) or size < 0:
        problem = f"{type(compressor).__name__}.bytes returned it for {coordinates} coordinates"
        raise InputError("compress", problem, got=size, expected="a whole number from 0")
    return int(size)


@dataclass(frozen=True)
class NoCompression(Compressor):
    """No compression: the delta is unchanged, with 4 bytes per number."""

    lossless: ClassVar[bool] = True

    def apply(self, delta: Tensor) -> Tensor:
        return delta

    def bytes(self, coordinates: int) -> int:
        return 4 * coordinates


@dataclass(frozen=True)
class TopK(Compressor):
    """Only the share `share` of entries with the largest absolute values.

    Each is sent as a number and a position: 8 bytes.
    """

    share: Share
    drops: ClassVar[bool] = True

    def kept(self, coordinates: int) -> int:
        """Return the number of entries that are kept of a delta with `coordinates` entries."""
        return min(coordinates, max(1, round(self.share * coordinates)))

    def apply(self, delta: Tensor) -> Tensor:
        kept = torch.topk(delta.abs(), self.kept(delta.numel()), sorted=False).indices
        return torch.zeros_like(delta).index_copy_(0, kept, delta[kept])

    def bytes(self, coordinates: int) -> int:
        return 8 * self.kept(coordinates)


@dataclass(frozen=True)
class EightBit(Compressor):
    """Uniform quantisation between the smallest and the largest number: a byte per number, plus these extremes."""

    def apply(self, delta: Tensor) -> Tensor:
        if not delta.numel():
            return delta
        low, high = delta.min(), delta.max()
        step = (high - low) / LEVELS
        return low + torch.round((delta - low) / step.clamp(min=torch.finfo(delta.dtype).tiny)) * step

    def bytes(self, coordinates: int) -> int:
        return coordinates + 8


def _parse_topk(text: str) -> Compressor:
    """Return the compressor that the text `topk:SHARE` describes."""
    kind, _, number = text.partition(":")
    if kind == "topk":
        # If the text is no number, the check below raises the error.
        with suppress(ValueError):
            share = float(number)
            if 0 < share <= 1:
                return TopK(share)
    raise InputError("compress", got=text, expected=EXPECTED)


COMPRESSOR: ComponentRegistry[Compressor] = ComponentRegistry(
    "compress", ("apply", "bytes"), {"none": NoCompression, "topk": TopK, "8bit": EightBit}, _parse_topk
)
