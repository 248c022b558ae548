"""Partitioners that deal samples like iid and then change each client's features. Test samples stay the same."""

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
    """A partition with Gaussian noise on the features (Li et al. 2022).

    The noise of client n of N, counted from 1, has the variance `level` * n / N.
    """

    skews: ClassVar[bool] = True
    level: NotNegative = 0.1

    def skew(self, client: int, clients: int, x: Any) -> Any:
        if isinstance(x, dict | tuple):
            raise InputError("partition", "noise changes features, and these samples have several inputs", hint=OTHER)
        if x.dtype.kind != "f":
            raise InputError("partition", "noise changes features, and these samples are tokens", hint=OTHER)
        drawn = generator(0, "noise", client, clients).standard_normal(x.shape, np.float32)
        return x + np.float32((self.level * (client + 1) / clients) ** 0.5) * drawn


@dataclass(frozen=True)
class Rotation(Iid):
    """A partition with rotated images. The images of client n, counted from 0, are rotated by n * `degrees`.

    The rotation is counter-clockwise. Multiples of 90 degrees move pixels. Other angles interpolate linearly, and fill
    the corners with 0, which is the mean of scaled images.
    """

    skews: ClassVar[bool] = True
    degrees: Positive = 90.0

    def skew(self, client: int, clients: int, x: Any) -> Any:
        if isinstance(x, dict | tuple):
            raise InputError(
                "partition", "rotation needs square images, and these samples have several inputs", hint=OTHER
            )
        if x.ndim != 4 or x.shape[2] != x.shape[3]:
            problem = f"rotation needs square images, and these samples have the shape {list(x.shape[1:])}"
            raise InputError("partition", problem, hint=OTHER)
        quarters, angle = divmod(client * self.degrees % 360, 90)
        turned = np.ascontiguousarray(np.rot90(x, int(quarters), (2, 3)))
        if angle:
            turned = _rotate_images(turned, angle)
        return turned


@dataclass(frozen=True)
class Colour(Iid):
    """A partition with other colours. The hue of the images of client n, counted from 0, is turned by n * `degrees`.

    The colours are rotated around the grey axis of (red, green, blue), so that grey stays grey. 120 degrees turn red
    into green, green into blue, and blue into red.
    """

    skews: ClassVar[bool] = True
    degrees: Positive = 120.0

    def skew(self, client: int, clients: int, x: Any) -> Any:
        if isinstance(x, dict | tuple) or x.ndim != 4 or x.shape[1] != 3:
            problem = "colour needs images with three channels, and these samples do not have three"
            raise InputError("partition", problem, hint=OTHER)
        matrix = _hue_rotation(client * self.degrees % 360)
        return np.einsum("ij,njhw->nihw", matrix, x, optimize=False)


def _rotate_images(x: Any, angle: float) -> Any:
    """Return the images [n, channels, height, width], rotated counter-clockwise by `angle` degrees."""
    # torchvision takes seconds to import.
    from torchvision.transforms.functional import InterpolationMode, rotate

    return rotate(torch.from_numpy(x), angle, InterpolationMode.BILINEAR).numpy()


def _hue_rotation(angle: float) -> Any:
    """Return the rotation by `angle` degrees around (1, 1, 1) by Rodrigues' formula, float32 [3, 3]."""
    turn = math.radians(angle)
    axis = np.array([[0.0, -1, 1], [1, 0, -1], [-1, 1, 0]]) / math.sqrt(3)
    matrix = np.eye(3) + math.sin(turn) * axis + (1 - math.cos(turn)) * axis @ axis
    return matrix.astype(np.float32)
