"""Numbers of local steps that follow from costs: tasks are short, and sending takes about half of their time."""

import re
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from fedraa.errors import InputError

Floats = npt.NDArray[np.float64]
_TEXT = re.compile(r"auto(?::(?P<minimum>[1-9]\d*)(?::(?P<kappa>\d+(?:\.\d+)?))?)?")
# Default number of batches of a task if sending takes no time.
SHORT = 10


@dataclass(frozen=True)
class AutoSteps:
    """The rule H = max(minimum, round(kappa * move / step)) for the number of local steps.

    Here `move` is the time to send a fragment both ways, and `step` the time of a batch. The default of `minimum` is
    `SHORT`, but at most one pass over the client's data, because longer tasks on few samples only delay their updates.
    A task continues the client's last pass at the batch at which the previous task ended.
    """

    minimum: int | None = None
    kappa: float = 1.0

    @classmethod
    def of(cls, steps: int | str | None) -> "AutoSteps | None":
        """Return the rule that the text auto, auto:LEAST or auto:LEAST:KAPPA describes, or None for a number.

        Raises InputError for other text.
        """
        if not isinstance(steps, str):
            return None
        match = _TEXT.fullmatch(steps)
        if match is None:
            expected = "a number from 1, auto, auto:LEAST or auto:LEAST:KAPPA"
            raise InputError("local_steps", got=steps, expected=expected)
        kappa = float(match["kappa"] or cls.kappa)
        if match["minimum"] is None:
            return cls(kappa=kappa)
        return cls(int(match["minimum"]), kappa)

    def minimum_steps(self, whole: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
        """Return the number of local steps H if sending takes no time. A pass over the data has `whole` batches."""
        if self.minimum is None:
            return np.minimum(SHORT, whole)
        return np.full_like(whole, self.minimum)

    def count(self, move: Floats, step: Floats, whole: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
        """Return the number of local steps H from the times of sending and computing.

        Args:
            move: Time to send the fragment both ways.
            step: Time of one batch.
            whole: Batches in one pass over the client's data.
        """
        return np.maximum(self.minimum_steps(whole), np.rint(self.kappa * move / step)).astype(np.int64)
