"""Label flip: attackers train on wrong labels.

y <- L - 1 - y            # L classes
With `source` and `target`, only the label `source` changes, to `target`.
"""

from dataclasses import dataclass
from typing import Annotated, ClassVar

import numpy as np
from pydantic import Field

from fedraa.attacks.attack import ATTACK, Attack, Labels
from fedraa.data.tree import Tree
from fedraa.errors import InputError

Label = Annotated[int, Field(ge=0)]


@ATTACK.register("label-flip")
@dataclass
class LabelFlip(Attack):
    """Train on wrong labels: on L - 1 - y instead of y, for L classes, or on `target` instead of `source`.

    Attributes:
        source: The only label that is changed; None to change all labels.
        target: The label that replaces `source`; None if `source` is None.
    """

    source: Label | None = None
    target: Label | None = None

    changes_labels: ClassVar[bool] = True

    def __post_init__(self) -> None:
        if (self.source is None) != (self.target is None):
            pair = (self.source, self.target)
            raise InputError("attack.target", got=pair, expected="both source and target, or neither")
        if self.source is not None and self.source == self.target:
            raise InputError("attack.target", got=self.target, expected="a label other than source")

    def start(self, classes: int, example: Tree) -> None:
        self._classes = classes
        for name, label in (("source", self.source), ("target", self.target)):
            if label is not None and label >= classes:
                raise InputError(f"attack.{name}", got=label, expected=f"a label below {classes}")

    def poison(self, x: Tree, y: Labels, rng: np.random.Generator) -> tuple[Tree, Labels]:
        if self.source is None or self.target is None:
            return x, (self._classes - 1 - y).astype(y.dtype)
        return x, np.where(y == self.source, self.target, y).astype(y.dtype)
