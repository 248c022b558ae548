"""A rule that sets the number of local steps of a task from its sending and computing times.

By default, sending takes at most about half of a task's time. Tasks are shorter if the labels of clients differ.
"""

import re
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from fedraa.errors import InputError
from fedraa.messages import Floats

_TEXT = re.compile(r"auto(?::(?P<minimum>[1-9]\d*)(?::(?P<kappa>\d+(?:\.\d+)?))?)?")
# The smallest number of local steps, if the user sets none and all clients have the same label frequencies.
DEFAULT_MINIMUM = 15
# The smallest number of local steps, however much the label frequencies differ. An adaptive learning rate compares the
# two halves of a task. It would never change if all tasks had one step.
SHORTEST = 2
# With the overlap o of the clients' labels, sending makes tasks at most LONGEST * o / (1 - o) local steps long. The
# more labels differ, the further long tasks of different clients drift apart.
LONGEST = 15
# A client with fewer samples than this share of the mean may have tasks of one step. The two halves of a task on a few
# samples always have a cosine near 1. Many such clients would let the learning rate grow too far.
FEW_SAMPLES = 0.5


@dataclass(frozen=True)
class AutoSteps:
    """The rule H = max(minimum, min(15 o / (1 - o), kappa * move / step)) for the number H of local steps, rounded.

    `move` is the time to send a fragment to the client and back. `step` is the time of one minibatch. o is the overlap
    of the clients' labels, from 0 to 1. If all clients have the same label frequencies, o is 1, and there is no limit.

    Attributes:
        minimum: The smallest number of local steps. None means 15 o, but at most one pass over the client's data. Tasks
            of clients with at least half of the mean number of samples have at least two steps.
        kappa: Computing time of a task as a multiple of its sending time.
    """

    minimum: int | None = None
    kappa: float = 1.0

    @classmethod
    def of(cls, steps: int | str | None) -> "AutoSteps | None":
        """Parse the text auto, auto:MINIMUM or auto:MINIMUM:KAPPA.

        Return None for a number or None. Raise InputError for any other text.
        """
        if not isinstance(steps, str):
            return None
        match = _TEXT.fullmatch(steps)
        if match is None:
            expected = "a number from 1, auto, auto:MINIMUM or auto:MINIMUM:KAPPA"
            raise InputError("local_steps", got=steps, expected=expected)
        kappa = float(match["kappa"] or cls.kappa)
        if match["minimum"] is None:
            return cls(kappa=kappa)
        return cls(int(match["minimum"]), kappa)

    def minimum_steps(
        self, whole: npt.NDArray[np.int64], overlap: float, size: Floats | float
    ) -> npt.NDArray[np.int64]:
        """Return the smallest number of local steps of each task.

        Args:
            whole: Number of minibatches in one pass over the client's data.
            overlap: The overlap of the clients' labels, from 0 to 1, which `measure_label_overlap` returns.
            size: The client's number of samples divided by the mean number of all clients.
        """
        if self.minimum is None:
            longest = np.where(size < FEW_SAMPLES, whole, np.maximum(SHORTEST, whole))
            return np.minimum(max(SHORTEST, round(DEFAULT_MINIMUM * overlap)), longest)
        return np.full_like(whole, self.minimum)

    def count(
        self, move: Floats, step: Floats, whole: npt.NDArray[np.int64], overlap: float, size: Floats
    ) -> npt.NDArray[np.int64]:
        """Return the number of local steps H for arrays of tasks.

        Args:
            move: Time to send the fragment to the client and back.
            step: Time of one minibatch, in the same unit.
            whole: Number of minibatches in one pass over the client's data.
            overlap: The overlap of the clients' labels, from 0 to 1.
            size: The client's number of samples divided by the mean number of all clients.
        """
        minimum = self.minimum_steps(whole, overlap, size)
        longest = LONGEST * overlap / (1 - overlap) if overlap < 1 else np.inf
        return np.maximum(minimum, np.rint(np.minimum(longest, self.kappa * move / step))).astype(np.int64)
