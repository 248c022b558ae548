"""Attacks in which each attacker changes its own delta: sign flip, scaling and Gaussian noise.

    sign-flip:  delta <- -scale * delta
    scaling:    delta <- scale * delta        # with scale = number of clients, one attacker replaces the model
    gaussian:   delta ~ N(0, std^2)

The attacker trains honestly, and then changes its delta. An attacker that flips the sign of each local gradient sends a
different delta if a task has several steps.
"""

from dataclasses import dataclass

import numpy as np

from fedraa.attacks.attack import ATTACK, Attack
from fedraa.messages import Vector
from fedraa.numbers import Positive


@ATTACK.register("sign-flip")
@dataclass
class SignFlip(Attack):
    """Send the delta times -`scale`."""

    scale: Positive = 1.0

    def forge(self, delta: Vector, rng: np.random.Generator) -> Vector:
        return np.float32(-self.scale) * delta


@ATTACK.register("scaling")
@dataclass
class Scaling(Attack):
    """Send the delta times `scale`."""

    scale: Positive = 10.0

    def forge(self, delta: Vector, rng: np.random.Generator) -> Vector:
        return np.float32(self.scale) * delta


@ATTACK.register("gaussian")
@dataclass
class Gaussian(Attack):
    """Send Gaussian noise of standard deviation `std` instead of the delta."""

    std: Positive = 0.1

    def forge(self, delta: Vector, rng: np.random.Generator) -> Vector:
        return np.float32(self.std) * rng.standard_normal(delta.shape, np.float32)
