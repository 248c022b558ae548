"""Compressors C(.) of what a client sends back: its gain, w - w_received, on the coordinates that it trained."""

from dataclasses import dataclass

import torch
from torch import Tensor

LEVELS = 255


@dataclass(frozen=True)
class Compressor:
    """none; topk, the share `value` of largest entries; or 8bit, uniform quantisation between the extremes."""

    kind: str = "none"
    value: float = 1.0

    @classmethod
    def parse(cls, spec: str) -> "Compressor":
        """From `none`, `topk:SHARE` or `8bit`; ValueError for anything else."""
        kind, _, number = spec.partition(":")
        if kind in ("none", "8bit") and not number:
            return cls(kind)
        try:
            share = float(number) if kind == "topk" else 0.0
        except ValueError:
            share = 0.0
        if not 0 < share <= 1:
            raise ValueError(
                f"compress: {spec!r} is none of none, 8bit or topk:SHARE with a share over 0 and at most 1"
            )
        return cls(kind, share)

    def kept(self, coordinates: int) -> int:
        """How many entries topk keeps of so many."""
        return min(coordinates, max(1, round(self.value * coordinates)))

    def bytes(self, coordinates: int) -> int:
        """On the wire: 4 a number; topk sends number and position, 8bit one byte and two extremes."""
        match self.kind:
            case "topk":
                return 8 * self.kept(coordinates)
            case "8bit":
                return coordinates + 8
        return 4 * coordinates

    def apply(self, delta: Tensor) -> Tensor:
        """The gain [k] as it arrives: compressed and decoded."""
        match self.kind:
            case "topk":
                kept = torch.topk(delta.abs(), self.kept(delta.numel()), sorted=False).indices
                return torch.zeros_like(delta).index_copy_(0, kept, delta[kept])
            case "8bit" if delta.numel():
                low, high = delta.min(), delta.max()
                step = (high - low) / LEVELS
                return low + torch.round((delta - low) / step.clamp(min=torch.finfo(delta.dtype).tiny)) * step
        return delta
