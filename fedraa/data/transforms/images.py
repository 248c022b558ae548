"""Common transforms of minibatches of images."""

from dataclasses import dataclass
from typing import Annotated, ClassVar

import numpy as np
import torch
from pydantic import Field
from torch import Tensor
from torch.nn import functional as F

from fedraa.data.transforms.transform import Transform
from fedraa.errors import InputError
from fedraa.numbers import MAX_FLOAT32, Count, UpToOne


@dataclass(frozen=True)
class Crop(Transform):
    """A random crop of each image to its original size, after padding (He et al. 2016).

    Attributes:
        padding: Number of pixels that are added on each side.
        fill: Value of the added pixels. The default 0 is the mean of scaled images.
    """

    moves: ClassVar[bool] = True
    padding: Count = 4
    fill: Annotated[float, Field(ge=-MAX_FLOAT32, le=MAX_FLOAT32, allow_inf_nan=False)] = 0.0

    def apply(self, x: Tensor, rng: np.random.Generator) -> Tensor:
        rows, _, height, width = _image_shape("crop", x)
        padded = F.pad(x, (self.padding,) * 4, value=self.fill)
        top, left = torch.from_numpy(rng.integers(0, 2 * self.padding + 1, (2, rows))).to(x.device)
        # The dimensions of `windows` are [b, c, top, left, height, width].
        windows = padded.unfold(2, height, 1).unfold(3, width, 1)
        return windows[torch.arange(rows, device=x.device), :, top, left]


@dataclass(frozen=True)
class Flip(Transform):
    """A random left-right reflection of each image.

    Attributes:
        share: The probability of the reflection.
    """

    moves: ClassVar[bool] = True
    share: UpToOne = 0.5

    def apply(self, x: Tensor, rng: np.random.Generator) -> Tensor:
        rows = _image_shape("flip", x)[0]
        mirrored = torch.from_numpy(rng.random(rows) < self.share).to(x.device)
        return torch.where(mirrored[:, None, None, None], x.flip(3), x)


@dataclass(frozen=True)
class Normalize(Transform):
    """The normalisation (x - mean) / std of each channel.

    Attributes:
        mean: The mean of each channel, or one mean for all; None for the mean of the training samples.
        std: The standard deviation of each channel, or one for all; None for that of the training samples.
    """

    random: ClassVar[bool] = False
    mean: tuple[float, ...] | None = None
    std: tuple[float, ...] | None = None

    def __post_init__(self) -> None:
        if (self.mean is None) != (self.std is None):
            raise InputError("transforms", "normalize has only one of mean and std", hint="set both, or neither")
        if self.std is not None and not all(value > 0 for value in self.std):
            raise InputError("transforms: normalize std", got=list(self.std), expected="values above 0")

    @property
    def scales(self) -> bool:
        return self.mean is not None

    def apply(self, x: Tensor, rng: np.random.Generator) -> Tensor:
        assert self.mean is not None
        assert self.std is not None
        channels = x.shape[1]
        if len(self.mean) not in (1, channels) or len(self.std) not in (1, channels):
            problem = f"normalize has {len(self.mean)} means and {len(self.std)} stds for {channels} channels"
            raise InputError("transforms", problem, hint="set one value for all channels, or one for each")
        shape = (1, -1, *[1] * (x.ndim - 2))
        mean, std = (torch.tensor(values, dtype=torch.float32, device=x.device) for values in (self.mean, self.std))
        return (x.float() - mean.view(shape)) / std.view(shape)

    def fitted(self, x: Tensor) -> "Normalize":
        if self.mean is not None:
            return self
        axes = [0, *range(2, x.ndim)]
        # With `allow_nan`, samples may have values that are not finite.
        finite = torch.isfinite(x).flatten(1).all(1)
        values = x[finite].double() if finite.any() else x.double()
        std = values.std(axes, correction=0)
        std[std == 0] = 1.0
        return Normalize(tuple(values.mean(axes).tolist()), tuple(std.tolist()))


def _image_shape(name: str, x: Tensor) -> tuple[int, int, int, int]:
    if x.ndim != 4:
        problem = f"{name} needs images, but these samples have the shape {list(x.shape[1:])}"
        raise InputError("transforms", problem, expected="samples [channels, height, width]")
    rows, channels, height, width = x.shape
    return rows, channels, height, width
