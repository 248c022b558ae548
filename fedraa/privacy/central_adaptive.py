"""Central privacy with a clip that follows a quantile of the norms of updates (Andrew et al. 2021).

    b_i = 1 if ||delta_i|| <= clip, otherwise 0
    share = 1/2 + (sum of (b_i - 1/2) + N(0, bit_noise^2)) / m        m is the expected number of clients
    clip <- clip * exp(-clip_lr * (share - quantile))        from the next round or buffer on
    noise of the updates: (noise^-2 - (2 bit_noise)^-2)^(-1/2)

The clip grows while too few updates have a norm below it. The sensitivity of the sum of b_i - 1/2 is 1/2, because a
client that is removed, or whose update is replaced by zero, has no term in it. `noise` is the noise
multiplier of both sums together. Each fragment has its own clip, and its share is over the clients that trained it.

Use it if the norm of updates is unknown or changes during training. `bit_noise` must exceed noise / 2. Its default,
m / 20, is too small for small cohorts. In each release, the noise changes the logarithm of the clip by
a random number of standard deviation clip_lr * bit_noise / m. If `bit_noise` is not far below m, as without a buffer,
the clip is mostly random.

Read next: privacy/central.py (the fixed clip), privacy/noisy_sum.py (clipping and noise).
"""

from dataclasses import dataclass
from math import exp

import numpy as np

from fedraa.errors import InputError
from fedraa.numbers import Positive, Share
from fedraa.privacy.privacy import PRIVACY, Privacy

# The default of `bit_noise`, as a share of the clients in a round or buffer.
BIT_NOISE_SHARE = 1 / 20


@PRIVACY.register("central-adaptive")
@dataclass
class CentralAdaptive(Privacy):
    """Central privacy with a clip that follows a quantile of the norms (Andrew et al. 2021).

    Attributes:
        noise: Noise multiplier of a release of two sums: the updates, and the number of updates below the clip.
        clip: The clip at the start.
        quantile: The share of updates that should have a norm below the clip.
        clip_lr: Speed of the adaptation.
        bit_noise: Standard deviation of the noise on the number of updates below the clip. None means 1/20 of the
            expected number of clients in a round or buffer.
    """

    clip: Positive = 0.1
    quantile: Share = 0.5
    clip_lr: Positive = 0.2
    bit_noise: Positive | None = None

    def update_noise(self, cohort: float) -> float:
        bit_noise = self._noise_of_bits(cohort)
        inverse_square = self.noise**-2 - (2 * bit_noise) ** -2
        if inverse_square <= 0:
            problem = f"in a cohort of {cohort:g}, bit_noise is {bit_noise:g}"
            hint = f"set bit_noise above {self.noise / 2:g}, or use less noise"
            expected = f"less than {2 * bit_noise:g}, twice the bit noise"
            raise InputError("privacy.noise", problem, got=self.noise, expected=expected, hint=hint)
        return float(inverse_square**-0.5)

    def adapt_clip(
        self, clip: float, centred_sum: float, *, voters: float, cohort: float, rng: np.random.Generator
    ) -> float:
        share = 0.5 + (centred_sum + rng.normal(0.0, self._noise_of_bits(cohort))) / voters
        return float(clip * exp(-self.clip_lr * (share - self.quantile)))

    def _noise_of_bits(self, cohort: float) -> float:
        if self.bit_noise is not None:
            return self.bit_noise
        return BIT_NOISE_SHARE * cohort
