"""Transforms of torchvision's v2, by name or as objects: one image at a time, drawn from the run's streams."""

from typing import Any

import numpy as np
import torch
from torch import Tensor

from fedraa.components.text import describe
from fedraa.data.transforms.transform import Transform

FIXED = ("CenterCrop", "Grayscale", "Normalize", "Pad", "Resize", "ToDtype", "ConvertImageDtype", "FiveCrop")
STILL = (
    "ColorJitter",
    "ConvertImageDtype",
    "GaussianBlur",
    "GaussianNoise",
    "Grayscale",
    "Normalize",
    "RandomAdjustSharpness",
    "RandomAutocontrast",
    "RandomGrayscale",
    "ToDtype",
)


class Vision(Transform):
    """`given` of torchvision.transforms.v2. What it draws comes from a seed that is drawn from the stream.

    Those that draw nothing, such as Resize, are applied to test samples, too.
    """

    def __init__(self, given: Any) -> None:
        self.given = given
        self.name = type(given).__name__
        # of a class in general, here of what it stands for
        self.random = self.name not in FIXED  # type: ignore[misc]  # a ClassVar
        self.moves = self.name not in STILL  # type: ignore[misc]  # likewise

    @property
    def scales(self) -> bool:
        return self.name == "Normalize"

    def apply(self, x: Tensor, rng: np.random.Generator) -> Tensor:
        seed = int(rng.integers(2**62))
        with torch.random.fork_rng(devices=[x.device] if x.device.type == "cuda" else []):
            torch.random.manual_seed(seed)
            return torch.stack([self.given(one) for one in x])

    def described(self) -> Any:
        return describe(self.given)
