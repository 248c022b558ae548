"""The base class of transforms, and the class with all transforms of a run."""

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor

from fedraa.components.calls import convert_errors
from fedraa.errors import InputError
from fedraa.rng import generator

Augment = Callable[[Tensor], Tensor]


class Transform(ABC):
    """A change of samples.

    A custom transform defines `apply`:

        class Dim(fl.Transform):
            def apply(self, x, rng):
                return x * torch.from_numpy(rng.uniform(0.5, 1, (len(x), 1, 1, 1)).astype("float32"))

    A function `(x, rng)` is also a transform. Draw random numbers only from `rng`, so that they depend on the seed.

    Attributes:
        random: True to change each training minibatch, but no test samples. False to change all training and test
            samples once, before the random transforms. Only a transform with False may change the shape.
        moves: True if values may move to another position in the sample.
    """

    random: ClassVar[bool] = True
    moves: ClassVar[bool] = False

    @property
    def scales(self) -> bool:
        """Return True if the transform scales inputs. The run then does not scale them."""
        return False

    @abstractmethod
    def apply(self, x: Tensor, rng: np.random.Generator) -> Tensor:
        """Return changed copies of the samples [b, ...]."""

    def fitted(self, x: Tensor) -> "Transform":
        """Return the transform for these training inputs [n, ...].

        A subclass may compute values from the inputs, such as their mean. By default, the transform does not change.
        """
        return self


@dataclass(frozen=True)
class Called(Transform):
    """A transform that calls a function `(x, rng)`. Error messages contain `name`."""

    name: str
    function: Callable[[Tensor, np.random.Generator], Tensor]

    def apply(self, x: Tensor, rng: np.random.Generator) -> Tensor:
        return self.function(x, rng)


@dataclass(frozen=True)
class Transforms:
    """The transforms of a run, in order, and the seed of the run."""

    parts: tuple[Transform, ...] = ()
    seed: int = 0

    def __bool__(self) -> bool:
        return bool(self.parts)

    @property
    def fixed(self) -> "Transforms":
        """Return the transforms that are not random."""
        return Transforms(tuple(part for part in self.parts if not part.random), self.seed)

    @property
    def drawn(self) -> "Transforms":
        """Return the random transforms."""
        return Transforms(tuple(part for part in self.parts if part.random), self.seed)

    def make_augmentation(self, client: int, turn: int) -> Augment:
        """Return a function that transforms the minibatches of task number `turn` of a client.

        All calls of the returned function use one random generator, so the order of the minibatches matters.
        """
        if not self.parts:
            return lambda x: x
        rng = generator(self.seed, "transforms", client, turn)
        return lambda x: self._apply_parts(x, rng)

    def all(self, x: Any) -> Any:
        """Return the array x [n, ...] after all transforms."""
        if not self.parts:
            return x
        return np.ascontiguousarray(self.apply_fixed(torch.from_numpy(np.require(x, None, ["C", "W"]))).numpy())

    def apply_fixed(self, x: Tensor) -> Tensor:
        """Return the samples after all transforms. Each transform has a random generator that does not depend on x."""
        for place, part in enumerate(self.parts):
            x = part.apply(x, self._generator_of(place))
        return x

    def _generator_of(self, place: int) -> np.random.Generator:
        return generator(self.seed, "transforms", place)

    def _apply_parts(self, x: Tensor, rng: np.random.Generator) -> Tensor:
        for part in self.parts:
            x = part.apply(x, rng)
        return x

    def fitted(self, x: Any) -> "Transforms":
        """Return the transforms for these training inputs. Some compute values from the inputs, such as their mean.

        Raises InputError if a transform cannot be applied to these inputs.
        """
        if isinstance(x, dict | tuple):
            problem = f"{transform_name(self.parts[0])} needs samples with one input, but these have {len(x)}"
            raise InputError("transforms", problem)
        fitted: list[Transform] = []
        for place, part in enumerate(self.fixed.parts):
            with convert_errors("transforms", getattr(part, "function", part)):
                ready = part.fitted(torch.from_numpy(x))
                _try_transform(ready, torch.from_numpy(x), self.seed)
                x = ready.apply(torch.from_numpy(x), self._generator_of(place)).numpy()
            fitted.append(ready)
        for part in self.drawn.parts:
            with convert_errors("transforms", getattr(part, "function", part)):
                ready = part.fitted(torch.from_numpy(x))
                for rows in (x, x[:1]):
                    _try_transform(ready, torch.from_numpy(rows), self.seed)
            fitted.append(ready)
        return Transforms(tuple(fitted), self.seed)


def transform_name(part: Any) -> str:
    """Return the name of a transform for error messages."""
    name = getattr(part, "name", None) or getattr(part, "__qualname__", type(part).__name__)
    return str(name)


def _try_transform(part: Transform, x: Tensor, seed: int) -> Tensor:
    """Apply a transform to samples, check the result and return it.

    Args:
        part: The transform.
        x: The inputs of some samples [n, ...].
        seed: The seed of the random numbers.

    Raises:
        InputError: The result is not a valid minibatch or is not finite, the transform changed its argument, or two
            calls with the same random numbers returned different results.
    """
    before = x.clone()
    changed, again = (part.apply(x, generator(seed, "transforms trial")) for _ in range(2))
    name = transform_name(part)
    if not isinstance(changed, Tensor):
        raise InputError(f"transforms: {name}", got=changed, expected="a tensor of samples")
    if part.random and (changed.shape != x.shape or changed.dtype != x.dtype):
        expected = f"the type and shape of its samples, {str(x.dtype).removeprefix('torch.')} {list(x.shape)}"
        raise InputError(f"transforms: {name}", got=changed, expected=f"{expected}, because it is random")
    if len(changed) != len(x):
        problem = f"it returned {len(changed)} samples for {len(x)}"
        raise InputError(f"transforms: {name}", problem, expected="the same number")
    if changed.is_floating_point() and not torch.isfinite(changed).all() and torch.isfinite(before).all():
        row = int(torch.isfinite(changed).flatten(1).all(1).logical_not().nonzero()[0])
        problem = f"it returned NaN or an infinity for sample {row} of the first minibatch"
        raise InputError(f"transforms: {name}", problem)
    if not _are_equal(before, x):
        raise InputError(f"transforms: {name}", "it changed its argument x", hint="return a new tensor")
    if not _are_equal(changed, again):
        problem = "it returned different samples for the same random numbers"
        raise InputError(f"transforms: {name}", problem, hint="draw random numbers only from rng")
    return changed


def _are_equal(a: Tensor, b: Tensor) -> bool:
    """Return True if the tensors are equal. NaN equals NaN."""
    return a.shape == b.shape and torch.allclose(a, b, rtol=0, atol=0, equal_nan=True)
