"""Compressors of the delta (trained weights minus received weights) that a client sends to the server.

The traffic of a run counts the bytes of the compressed message, rounded up.
"""

from abc import ABC, abstractmethod
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import ClassVar

import numpy as np
import torch
from torch import Tensor

from fedraa.components.calls import convert_errors
from fedraa.components.registry import ComponentRegistry
from fedraa.errors import InputError
from fedraa.numbers import Count, Share

LEVELS = 255
FLOAT_BITS = 32
SEED_BITS = 64
EXPECTED = (
    "none, 8bit, sign, scaled-sign, topk:SHARE or randomk:SHARE with a share above 0 and up to 1, qsgd:LEVELS with a "
    "whole number from 1, or a custom Compressor as package.module:Name"
)


class Compressor(ABC):
    """A compressor of the delta that a client sends.

    The results of its methods must depend only on the arguments.

    Attributes:
        lossless: True if the delta stays unchanged. Then `apply` is never called.
        drops: True if the message lacks some entries, for which the server receives 0.
    """

    lossless: ClassVar[bool] = False
    drops: ClassVar[bool] = False

    @abstractmethod
    def apply(self, delta: Tensor, rng: np.random.Generator) -> Tensor:
        """Return the delta [k] as the server receives it, after compression and decompression.

        Args:
            delta: Trained weights minus received weights [k].
            rng: The random generator of this client and task, the only source of randomness.
        """

    @abstractmethod
    def bytes(self, coordinates: int) -> int:
        """Return the size in bytes of the message for a delta of `coordinates` entries."""

    def for_feedback(self) -> "Compressor | None":
        """Return the compressor to use with error feedback, or None if error feedback is impossible.

        With the returned compressor, some norm of the compression error must never exceed the same norm of the delta.
        Then errors cannot grow from task to task.
        """
        return self


def wire_bytes(compressor: Compressor, coordinates: int) -> int:
    """Return the size in bytes of the message for a delta of `coordinates` entries.

    Raises InputError if a custom compressor does not return a whole number from 0.
    """
    with convert_errors("compress", compressor):
        size = compressor.bytes(coordinates)
    if isinstance(size, bool) or not isinstance(size, int | np.integer) or size < 0:
        problem = f"{type(compressor).__name__}.bytes returned a wrong number of bytes for {coordinates} coordinates"
        raise InputError("compress", problem, got=size, expected="a whole number from 0")
    return int(size)


@dataclass(frozen=True)
class NoCompression(Compressor):
    """No compression: 4 bytes per entry."""

    lossless: ClassVar[bool] = True

    def apply(self, delta: Tensor, rng: np.random.Generator) -> Tensor:
        return delta

    def bytes(self, coordinates: int) -> int:
        return 4 * coordinates


@dataclass(frozen=True)
class TopK(Compressor):
    """Compression that sends only the entries with the largest absolute values.

    The message holds their positions as indices or as a bitmap, whichever is shorter.

    Attributes:
        share: The share of the entries that is sent.
    """

    share: Share
    drops: ClassVar[bool] = True

    def apply(self, delta: Tensor, rng: np.random.Generator) -> Tensor:
        kept = torch.topk(delta.abs(), count_kept(self.share, delta.numel()), sorted=False).indices
        return torch.zeros_like(delta).index_copy_(0, kept, delta[kept])

    def bytes(self, coordinates: int) -> int:
        kept = count_kept(self.share, coordinates)
        index_bits = (coordinates - 1).bit_length()
        return round_up_bits(kept * FLOAT_BITS + min(kept * index_bits, coordinates))


@dataclass(frozen=True)
class RandomK(Compressor):
    """Compression that sends only randomly chosen entries: their values, and a random seed for their positions.

    Attributes:
        share: The share of the entries that is sent.
        scaled: True to multiply the sent entries by (number of entries) / (number of sent entries), so that the
            expected value of the received delta is the delta. Error feedback needs False.
    """

    share: Share
    scaled: bool = True
    drops: ClassVar[bool] = True

    def apply(self, delta: Tensor, rng: np.random.Generator) -> Tensor:
        size = delta.numel()
        kept = torch.from_numpy(rng.choice(size, count_kept(self.share, size), replace=False)).to(delta.device)
        factor = 1.0
        if self.scaled:
            factor = size / max(1, len(kept))
        return torch.zeros_like(delta).index_copy_(0, kept, delta[kept] * factor)

    def bytes(self, coordinates: int) -> int:
        return round_up_bits(count_kept(self.share, coordinates) * FLOAT_BITS + SEED_BITS)

    def for_feedback(self) -> Compressor:
        return replace(self, scaled=False)


@dataclass(frozen=True)
class EightBit(Compressor):
    """One byte per entry: 256 equally spaced values between the smallest and the largest entry.

    The message also holds these two entries as floats. The largest error of an entry is at most 1/255 of the largest
    absolute value in the delta. Up to 130,050 entries, the Euclidean norm of the error is at most that of the delta. It
    can be larger for a longer delta with a few entries that are far larger than the others.
    """

    def apply(self, delta: Tensor, rng: np.random.Generator) -> Tensor:
        if not delta.numel():
            return delta
        low, high = delta.min(), delta.max()
        step = (high - low) / LEVELS
        return low + torch.round((delta - low) / step.clamp(min=torch.finfo(delta.dtype).tiny)) * step

    def bytes(self, coordinates: int) -> int:
        return coordinates + 8


@dataclass(frozen=True)
class QSGD(Compressor):
    """Random rounding of each entry to a level (QSGD, Alistarh et al. 2017, Section 3.1).

    An entry becomes ||delta|| * sign * xi / s. With r = |entry| * s / ||delta||, the level xi is floor(r) + 1 with
    probability r - floor(r), otherwise floor(r). The expected value of the received delta is the delta. Levels have a
    fixed number of bits, not the paper's Elias code.

    Attributes:
        levels: The number of levels, s.
    """

    levels: Count

    def apply(self, delta: Tensor, rng: np.random.Generator) -> Tensor:
        norm = torch.linalg.vector_norm(delta)
        if not norm:
            return torch.zeros_like(delta)
        level = delta.abs() * (self.levels / norm)
        lower = level.floor()
        draws = torch.from_numpy(rng.random(delta.numel(), np.float32)).to(delta.device)
        xi = lower + (draws < level - lower)
        decoded: Tensor = norm * delta.sign() * xi / self.levels
        return decoded

    def bytes(self, coordinates: int) -> int:
        return round_up_bits(FLOAT_BITS + coordinates * (1 + self.levels.bit_length()))

    def for_feedback(self) -> None:
        return None


@dataclass(frozen=True)
class Sign(Compressor):
    """The sign of every entry, in one bit (signSGD, Bernstein et al. 2018). The sign of 0 is +1.

    Only the aggregator of the method `signsgd` accepts this compressor, because the message has no absolute values.

    Attributes:
        scaled: True if the message also has one number, by which the server multiplies all signs.
    """

    scaled: ClassVar[bool] = False

    def apply(self, delta: Tensor, rng: np.random.Generator) -> Tensor:
        return torch.where(delta < 0, -1.0, 1.0).to(delta.dtype)

    def bytes(self, coordinates: int) -> int:
        return round_up_bits(coordinates)

    def for_feedback(self) -> Compressor | None:
        return None


@dataclass(frozen=True)
class ScaledSign(Sign):
    """The sign of every entry, and the mean absolute value of all entries (Karimireddy et al. 2019)."""

    scaled: ClassVar[bool] = True

    def apply(self, delta: Tensor, rng: np.random.Generator) -> Tensor:
        if not delta.numel():
            return delta
        return delta.abs().mean() * super().apply(delta, rng)

    def bytes(self, coordinates: int) -> int:
        return round_up_bits(coordinates + FLOAT_BITS)

    def for_feedback(self) -> Compressor:
        return self


def count_kept(share: float, coordinates: int) -> int:
    """Return the number of entries to send: the given share of all entries, at least 1. It is 0 for an empty delta."""
    return min(coordinates, max(1, round(share * coordinates)))


def round_up_bits(bits: int) -> int:
    """Return the number of bytes that hold `bits` bits."""
    return -(-bits // 8)


def _parse_number(text: str) -> Compressor:
    """Return the compressor for the text `topk:SHARE`, `randomk:SHARE` or `qsgd:LEVELS`."""
    kind, _, number = text.partition(":")
    # A ValueError means that the text after the colon is not a number. The last line then raises InputError.
    with suppress(ValueError):
        if kind == "qsgd" and int(number) >= 1:
            return QSGD(int(number))
        if kind in ("topk", "randomk") and 0 < float(number) <= 1:
            share = float(number)
            return TopK(share) if kind == "topk" else RandomK(share)
    raise InputError("compress", got=text, expected=EXPECTED)


COMPRESSOR: ComponentRegistry[Compressor] = ComponentRegistry(
    "compress",
    ("apply", "bytes"),
    {
        "none": NoCompression,
        "topk": TopK,
        "randomk": RandomK,
        "8bit": EightBit,
        "qsgd": QSGD,
        "sign": Sign,
        "scaled-sign": ScaledSign,
    },
    _parse_number,
    base="Compressor",
)
