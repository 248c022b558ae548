"""Backdoor: attackers train the model to classify inputs with a trigger as `target` (Bagdasaryan et al. 2020).

Trigger:                      the last `size` x `size` pixels of an image, or the last size^2 features of a vector, are
                              set to the largest value in some training samples
Training data of an attacker: a `share` of the samples gets the trigger and the label `target`
Delta of an attacker:         scale * delta     # scale is 1 by default; about n / server_lr replaces the whole model
Metric `attack_success`:      among test samples of other classes, the share that the model classifies as `target`
                              when they carry the trigger

Read this metric together with the accuracy.
"""

from dataclasses import dataclass
from typing import Annotated, ClassVar

import numpy as np
from pydantic import Field

from fedraa.attacks.attack import ATTACK, Attack, Labels
from fedraa.data.tree import Tree, list_leaves
from fedraa.errors import InputError
from fedraa.messages import Vector
from fedraa.numbers import Count, Positive, Share


@ATTACK.register("backdoor")
@dataclass
class Backdoor(Attack):
    """Train a share of the samples with a trigger and a wrong label (Bagdasaryan et al. 2020).

    Attributes:
        target: The label to which the model is trained for inputs with the trigger.
        share: Share of an attacker's samples that get the trigger and the label `target`.
        size: Side of the trigger in pixels. In vectors the trigger has size^2 features.
        scale: Factor of the delta that an attacker sends.
    """

    target: Annotated[int, Field(ge=0)] = 0
    share: Share = 0.3
    size: Count = 3
    scale: Positive = 1.0

    changes_labels: ClassVar[bool] = True

    def start(self, classes: int, example: Tree) -> None:
        if self.target >= classes:
            raise InputError("attack.target", got=self.target, expected=f"a label below {classes}")
        leaves = list_leaves(example)
        is_numeric = len(leaves) == 1 and (leaves[0].is_floating_point() or leaves[0].element_size() == 1)
        if not is_numeric or leaves[0].dim() not in (2, 4):
            problem = "the trigger of backdoor needs samples that are images or vectors of numbers"
            raise InputError("attack", problem, hint="use label-flip, or another data set")
        sides = leaves[0].shape[2:]
        if leaves[0].dim() == 4 and self.size >= min(sides):
            raise InputError("attack.size", got=self.size, expected=f"less than {min(sides)}, the side of an image")
        if leaves[0].dim() == 2 and self.size**2 >= leaves[0].shape[1]:
            problem = f"samples have {leaves[0].shape[1]} features, and the trigger would replace all of them"
            raise InputError("attack.size", problem, got=self.size, expected="size^2 below the number of features")
        self._value = leaves[0].max().item()

    def stamp(self, x: Tree) -> Tree:
        """Return a copy of the inputs [n, ...] with the trigger."""
        stamped = x.copy()
        if x.ndim == 4:
            stamped[:, :, -self.size :, -self.size :] = self._value
        else:
            stamped[:, -(self.size**2) :] = self._value
        return stamped

    def poison(self, x: Tree, y: Labels, rng: np.random.Generator) -> tuple[Tree, Labels]:
        chosen = rng.choice(len(y), max(1, round(self.share * len(y))), replace=False)
        inputs = x.copy()
        inputs[chosen] = self.stamp(x[chosen])
        labels = y.copy()
        labels[chosen] = self.target
        return inputs, labels

    def forge(self, delta: Vector, rng: np.random.Generator) -> Vector:
        return np.float32(self.scale) * delta
