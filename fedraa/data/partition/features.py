"""Partitioners that divide samples at random and then change the training inputs of each client.

Test samples stay the same. Validation samples are taken from the changed training samples.
"""

import math
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import torch

from fedraa.data.partition.iid import Iid
from fedraa.errors import InputError
from fedraa.numbers import NotNegative, Positive
from fedraa.rng import generator

OTHER = "choose another partition"


@dataclass(frozen=True)
class Noise(Iid):
    """A partition that adds Gaussian noise to the inputs (Li et al. 2022).

    Attributes:
        level: The noise of client n of N (n from 1) has the variance level * n / N.
    """

    skews: ClassVar[bool] = True
    level: NotNegative = 0.1

    def skew(self, client: int, clients: int, x: Any) -> Any:
        if isinstance(x, dict | tuple):
            raise InputError("partition", "noise needs samples with one input, but these have several", hint=OTHER)
        if x.dtype.kind != "f":
            raise InputError("partition", "noise needs numbers as features, but these samples are tokens", hint=OTHER)
        drawn = generator(0, "noise", client, clients).standard_normal(x.shape, np.float32)
        return x + np.float32((self.level * (client + 1) / clients) ** 0.5) * drawn


@dataclass(frozen=True)
class Rotation(Iid):
    """A partition that rotates images counter-clockwise, by a different angle for each client.

    Multiples of 90 degrees only move pixels. For other angles, pixels are interpolated linearly, and the corners are
    filled with 0, which is the mean of scaled images.

    Attributes:
        degrees: The images of client n (n from 0) are rotated by n * degrees.
    """

    skews: ClassVar[bool] = True
    degrees: Positive = 90.0

    def skew(self, client: int, clients: int, x: Any) -> Any:
        if isinstance(x, dict | tuple):
            raise InputError(
                "partition", "rotation needs square images, but these samples have several inputs", hint=OTHER
            )
        if x.ndim != 4 or x.shape[2] != x.shape[3]:
            problem = f"rotation needs square images, but these samples have the shape {list(x.shape[1:])}"
            raise InputError("partition", problem, hint=OTHER)
        quarters, angle = divmod(client * self.degrees % 360, 90)
        turned = np.ascontiguousarray(np.rot90(x, int(quarters), (2, 3)))
        if angle:
            turned = _rotate_images(turned, angle)
        return turned


@dataclass(frozen=True)
class Colour(Iid):
    """A partition that changes the hue of images, by a different angle for each client.

    Colours rotate around the grey axis: 120 degrees turn red into green, green into blue, and blue into red.

    Attributes:
        degrees: The hue of client n (n from 0) is rotated by n * degrees.
    """

    skews: ClassVar[bool] = True
    degrees: Positive = 120.0

    def skew(self, client: int, clients: int, x: Any) -> Any:
        if isinstance(x, dict | tuple) or x.ndim != 4 or x.shape[1] != 3:
            problem = "colour needs images with three channels, but these samples are not such images"
            raise InputError("partition", problem, hint=OTHER)
        matrix = _hue_rotation(client * self.degrees % 360)
        return np.einsum("ij,njhw->nihw", matrix, x, optimize=False)


def _rotate_images(x: Any, angle: float) -> Any:
    """Return the images [n, channels, height, width], rotated counter-clockwise by `angle` degrees."""
    # Importing torchvision takes seconds.
    from torchvision.transforms.functional import InterpolationMode, rotate

    return rotate(torch.from_numpy(x), angle, InterpolationMode.BILINEAR).numpy()


def _hue_rotation(angle: float) -> Any:
    """Return the rotation matrix, float32 [3, 3], of `angle` degrees around (1, 1, 1) (Rodrigues' formula)."""
    turn = math.radians(angle)
    axis = np.array([[0.0, -1, 1], [1, 0, -1], [-1, 1, 0]]) / math.sqrt(3)
    matrix = np.eye(3) + math.sin(turn) * axis + (1 - math.cos(turn)) * axis @ axis
    return matrix.astype(np.float32)
