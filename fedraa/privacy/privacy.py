"""The registry and the base class of privacy mechanisms."""

from dataclasses import dataclass
from itertools import chain
from typing import ClassVar

import numpy as np

from fedraa.components.registry import ComponentRegistry
from fedraa.errors import InputError
from fedraa.numbers import Positive
from fedraa.vectors.chunked import map_chunks, ordered_sum, sum_squares

DELTA_EXPONENT = 1.1


@dataclass
class Privacy:
    """A mechanism that clips client updates and adds Gaussian noise.

    Attributes:
        noise: Noise multiplier: standard deviation of the noise, as a multiple of the sensitivity.
        clip: Largest norm of an update.
        local: True if each client adds the noise itself, so that clients need not trust the server.
    """

    noise: Positive = 1.0
    clip: Positive = 1.0

    local: ClassVar[bool] = False

    def update_noise(self, cohort: float) -> float:
        """Return the noise multiplier for the sum of updates. With an adaptive clip it is larger than `noise`.

        `cohort` is the expected number of clients in a round, or the number of updates in a buffer.
        """
        return self.noise

    def adapt_clip(
        self, clip: float, centred_sum: float, *, voters: float, cohort: float, rng: np.random.Generator
    ) -> float:
        """Return the clip of the next round or buffer.

        Args:
            clip: The current clip.
            centred_sum: Sum over the clients of b - 1/2; b is 1 if the norm of the update is at most the clip, else 0.
            voters: Number of clients by which the sum is divided. With submodels it may be less than the cohort.
            cohort: Expected number of clients in a round or buffer, which determines the noise on the sum.
            rng: The source of the noise.
        """
        return clip


PRIVACY: ComponentRegistry[Privacy] = ComponentRegistry(
    "privacy", ("update_noise", "adapt_clip"), base="privacy.privacy.Privacy"
)


def default_delta(clients: int) -> float:
    """Return the delta of the privacy guarantee (epsilon, delta) for N clients: N^-1.1, but at most 0.1."""
    return min(0.1, float(clients**-DELTA_EXPONENT))


def measure_norm(delta: np.ndarray) -> float:
    """Return the Euclidean norm of a delta [k], computed in float64."""
    sums = chain.from_iterable(map_chunks(len(delta), lambda piece: sum_squares(delta[piece])))
    return float(np.sqrt(ordered_sum(list(sums))))


def refuse_missing_library() -> None:
    """Raise InputError if dp-accounting, which computes epsilon, is not installed."""
    try:
        import dp_accounting  # noqa: F401
    except ImportError:
        problem = "dp-accounting, which computes epsilon, is not installed"
        raise InputError("privacy", problem, hint="pip install 'fedraa[privacy]'") from None
