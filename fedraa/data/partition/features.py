"""Clients whose features differ: dealt as iid does, then changed client by client. Test samples stay as they are."""

from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from fedraa.data.partition.iid import Iid
from fedraa.numbers import NotNegative
from fedraa.rng import generator


@dataclass(frozen=True)
class Noise(Iid):
    """Client n of N, from 1, has Gaussian noise of variance `level` * n / N on its features (Li et al. 2022)."""

    skews: ClassVar[bool] = True
    level: NotNegative = 0.1

    def skew(self, client: int, clients: int, x: Any) -> Any:
        if isinstance(x, dict | tuple) or x.dtype.kind != "f":
            what = "several inputs" if isinstance(x, dict | tuple) else "tokens"
            raise ValueError(f"partition: noise changes features; these samples are {what}")
        drawn = generator(0, "noise", client, clients).standard_normal(x.shape, np.float32)
        return x + np.float32((self.level * (client + 1) / clients) ** 0.5) * drawn


@dataclass(frozen=True)
class Rotation(Iid):
    """Client n's images are turned by n modulo 4 quarters of a circle."""

    skews: ClassVar[bool] = True

    def skew(self, client: int, clients: int, x: Any) -> Any:
        if isinstance(x, dict | tuple):
            raise ValueError("partition: rotation takes square images; these samples are several inputs")
        if x.ndim != 4 or x.shape[2] != x.shape[3]:
            raise ValueError(f"partition: rotation takes square images, not samples {list(x.shape[1:])}")
        return np.ascontiguousarray(np.rot90(x, client % 4, (2, 3)))
