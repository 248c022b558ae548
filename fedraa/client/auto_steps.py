"""Local steps that follow from what sending costs: short tasks, but communication no more than about half of them."""

import re
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]
_TEXT = re.compile(r"auto(?::(?P<least>[1-9]\d*)(?::(?P<kappa>\d+(?:\.\d+)?))?)?")
SHORT = 20  # batches of a task, where a pass has as many


@dataclass(frozen=True)
class AutoSteps:
    """H = max(least, round(kappa * move / step)): `move` the time to send a fragment there and back, `step` of a batch.

    Without `least` that is `SHORT`, but no more than a pass over the client's shard: with few data longer tasks only
    come back later. A task goes on with the client's last pass, where the task before left off.
    """

    least: int | None = None
    kappa: float = 1.0

    @classmethod
    def of(cls, steps: int | str | None) -> "AutoSteps | None":
        """Of auto, auto:LEAST or auto:LEAST:KAPPA; None if it is no text. ValueError says what it takes."""
        if not isinstance(steps, str):
            return None
        match = _TEXT.fullmatch(steps)
        if match is None:
            raise ValueError("takes a number from 1, auto, auto:LEAST or auto:LEAST:KAPPA")
        return cls(int(match["least"]) if match["least"] else None, float(match["kappa"] or cls.kappa))

    def shortest(self, whole: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
        """H where sending takes no time, on shards of `whole` batches."""
        return np.minimum(SHORT, whole) if self.least is None else np.full_like(whole, self.least)

    def count(self, move: Floats, step: Floats, whole: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
        """H of tasks whose fragment takes `move` to send and `step` per batch, on shards of `whole` batches."""
        return np.maximum(self.shortest(whole), np.rint(self.kappa * move / step)).astype(np.int64)
