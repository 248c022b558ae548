"""Clipping and noise of central privacy. The updates are summed elsewhere: by an aggregator or update rule."""

from typing import ClassVar

import numpy as np

from fedraa.components.state import Stateful
from fedraa.messages import Index, Mask, Vector
from fedraa.privacy.privacy import Privacy, measure_norm
from fedraa.rng import generator

# Memory in bytes per parameter: clips, sum of updates, noise, and intermediate arrays.
NOISE_BYTES = 28


class NoisySum(Stateful):
    """The clips (largest norms) of updates, and the noise of each release: a round, a buffer, or one update.

    Args:
        privacy: The mechanism.
        size: Number of parameters of the model, d.
        cohort: Expected number of clients in a round, or number of updates in a buffer.
        whole: True if every client trains all coordinates. A release without updates then also has noise.
        seed: Seed of the run.
    """

    state_fields: ClassVar[tuple[str, ...]] = ("_releases", "clips", "_centred", "_voters", "_scale")

    def __init__(self, privacy: Privacy, size: int, *, cohort: float, whole: bool, seed: int) -> None:
        self.cohort = cohort
        self._privacy = privacy
        self._multiplier = privacy.update_noise(cohort)
        self._whole = whole
        self._seed = seed
        self._releases = 0
        # The clip (largest norm) by fragment. The key 0 is also used for the whole model and for sampled submodels.
        self.clips: dict[int, float] = {}
        # The sum of b_i - 1/2 over the updates of this release, by fragment. b_i is 1 if the norm of update i is within
        # the clip, otherwise 0 (see `central_adaptive`).
        self._centred: dict[int, float] = {}
        # The number of updates in this sum, by fragment.
        self._voters: dict[int, int] = {}
        # For each coordinate [d], the largest clip among the updates that contain it; 0 if no update contains it.
        self._scale = np.zeros(size)

    def clip(self, delta: Vector, where: Index | slice, fragment: int) -> Vector:
        """Return the update, scaled down so that its norm is at most the clip. Count the update in this release.

        Args:
            delta: The update [k].
            where: Its coordinates in the model.
            fragment: The number of the fixed fragment; 0 if the client trained the whole model or a sampled submodel.
        """
        bound = self.clips.setdefault(fragment, self._privacy.clip)
        norm = measure_norm(delta)
        self._centred[fragment] = self._centred.get(fragment, 0.0) + (0.5 if norm <= bound else -0.5)
        self._voters[fragment] = self._voters.get(fragment, 0) + 1
        self._scale[where] = np.maximum(self._scale[where], bound)
        if norm <= bound:
            return delta
        return np.asarray(delta * (bound / norm), np.float32)

    def release(self) -> tuple[Vector, Mask]:
        """Return the noise [d] and the mask [d] of trained coordinates, and begin the next release."""
        if self._whole:
            self._scale.fill(self.clips.setdefault(0, self._privacy.clip))
        covered = self._scale > 0
        rng = generator(self._seed, "privacy", self._releases)
        noise = self._multiplier * self._scale * rng.standard_normal(self._scale.size)
        self._adapt_clips()
        self._scale.fill(0.0)
        self._releases += 1
        return noise.astype(np.float32), covered

    def _adapt_clips(self) -> None:
        rng = generator(self._seed, "privacy-bits", self._releases)
        for fragment in sorted(self.clips):
            voters = self.cohort
            if not self._whole:
                voters = self._voters.get(fragment, 0)
            if voters:
                centred = self._centred.get(fragment, 0.0)
                # The sum of b_i - 1/2 is divided by `voters`, the number of updates (expected number if `whole`).
                # The noise on this sum depends on the expected cohort, like the noise on the sum of the updates.
                self.clips[fragment] = self._privacy.adapt_clip(
                    self.clips[fragment], centred, voters=voters, cohort=self.cohort, rng=rng
                )
        self._centred.clear()
        self._voters.clear()
