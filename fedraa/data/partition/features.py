"""Partitioners that deal samples like iid and then change each client's features. Test samples stay the same."""

from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from fedraa.data.partition.iid import Iid
from fedraa.errors import InputError
from fedraa.numbers import NotNegative
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
    """A partition with rotated images. Those of client n, counted from 0, are rotated by (n modulo 4) * 90 degrees."""

    skews: ClassVar[bool] = True

    def skew(self, client: int, clients: int, x: Any) -> Any:
        if isinstance(x, dict | tuple):
            raise InputError(
                "partition", "rotation needs square images, and these samples have several inputs", hint=OTHER
            )
        if x.ndim != 4 or x.shape[2] != x.shape[3]:
            problem = f"rotation needs square images, and these samples have the shape {list(x.shape[1:])}"
            raise InputError("partition", problem, hint=OTHER)
        return np.ascontiguousarray(np.rot90(x, client % 4, (2, 3)))
