"""Local privacy: every client clips its update and adds Gaussian noise before it sends the update.

    client i sends delta_i * min(1, clip / ||delta_i||) + N(0, (noise * 2 clip)^2 I), on the coordinates that it trains

The sensitivity is 2 clip, the largest difference of two updates. Every task makes an update public, so epsilon grows
with a client's tasks. The summary has the largest epsilon of all clients.

Use it if clients do not trust the server. The error of a mean of m updates is about 2 sqrt(m) times that of `central`.

Read next: privacy/central.py (a trusted server), privacy/accountant.py (epsilon).
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import ClassVar

import numpy as np

from fedraa.client.task_trainer import TaskTrainer
from fedraa.client.trainer import Work
from fedraa.messages import Task, Update, Vector
from fedraa.privacy.privacy import PRIVACY, Privacy, measure_norm
from fedraa.rng import generator

# Memory in bytes per trained parameter: the update, the clipped delta, the noise, and intermediate arrays.
LOCAL_NOISE_BYTES = 36


@PRIVACY.register("local")
@dataclass
class Local(Privacy):
    """Local privacy: each client clips its update and adds noise of standard deviation `2 * noise * clip`."""

    local: ClassVar[bool] = True


class LocallyPrivateTrainer:
    """A trainer that clips every update of another trainer and adds noise."""

    def __init__(self, trainer: TaskTrainer, privacy: Privacy, seed: int) -> None:
        self._trainer = trainer
        self._privacy = privacy
        self._seed = seed

    def train_all(self, work: Sequence[Work]) -> list[Update]:
        updates = self._trainer.train_all(work)
        return [self._make_private(one.task, update) for one, update in zip(work, updates, strict=True)]

    def reset(self) -> None:
        self._trainer.reset()

    def _make_private(self, task: Task, update: Update) -> Update:
        trained = np.ones(task.size, bool)
        if task.mask is not None:
            trained = task.mask
        rng = generator(self._seed, "local-privacy", task.client, task.turn)
        params = np.array(update.params)
        params[trained] = task.params[trained] + privatise((params - task.params)[trained], self._privacy, rng)
        return replace(update, params=params)


def privatise(delta: Vector, privacy: Privacy, rng: np.random.Generator) -> Vector:
    """Clip a delta [k], add the noise of local privacy, and return the result."""
    norm = measure_norm(delta)
    factor = 1.0
    if norm > privacy.clip:
        factor = privacy.clip / norm
    noise = 2 * privacy.clip * privacy.update_noise(1) * rng.standard_normal(delta.size)
    return np.asarray(factor * delta + noise, np.float32)
