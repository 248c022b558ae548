"""Transforms of torchvision.transforms.v2, with random numbers from the seed of the run."""

from typing import Any

import numpy as np
import torch
from torch import Tensor

from fedraa.components.text import describe_component
from fedraa.data.transforms.transform import Transform

FIXED = ("CenterCrop", "Grayscale", "Normalize", "Pad", "Resize", "ToDtype", "ConvertImageDtype")
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
    """A transform of torchvision.transforms.v2. It is applied to one image after another.

    Before each call, PyTorch's generator is seeded by the generator of the run. Transforms in `FIXED`, such as Resize,
    are not random and also change test samples.
    """

    def __init__(self, wrapped: Any) -> None:
        self.wrapped = wrapped
        self.name = type(wrapped).__name__
        # Other transforms set these attributes in the class. Here they depend on the wrapped transform.
        self.random = self.name not in FIXED  # type: ignore[misc]
        self.moves = self.name not in STILL  # type: ignore[misc]

    @property
    def scales(self) -> bool:
        return self.name == "Normalize"

    def apply(self, x: Tensor, rng: np.random.Generator) -> Tensor:
        seed = int(rng.integers(2**62))
        devices = [x.device] if x.device.type == "cuda" else []
        with torch.random.fork_rng(devices=devices):
            torch.random.manual_seed(seed)
            return torch.stack([self.wrapped(image) for image in x])

    def described(self) -> Any:
        return describe_component(self.wrapped)
