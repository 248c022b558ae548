"""What a transform is, and those of a run: of every sample, and drawn anew in training."""

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor

from fedraa.components.calls import calling
from fedraa.rng import generator

Augment = Callable[[Tensor], Tensor]


class Transform(ABC):
    """Changes samples, where they are trained.

        class Dim(fl.Transform):
            def apply(self, x, rng):
                return x * torch.from_numpy(rng.uniform(0.5, 1, (len(x), 1, 1, 1)).astype("float32"))

    A plain function with these arguments is one, too. What is random is drawn from `rng` alone, for the seed to decide.

    A `random` one is for training: it is applied to each minibatch anew, and to no test sample. One that is not is
    applied to the training and the test samples once, before any that is random, and may change their shape.
    """

    random: ClassVar[bool] = True
    moves: ClassVar[bool] = False
    """Whether what is at a place of a sample may be elsewhere afterwards."""

    @property
    def scales(self) -> bool:
        """Return True if it scales inputs by values of the user's, so that the run must not scale them before."""
        return False

    @abstractmethod
    def apply(self, x: Tensor, rng: np.random.Generator) -> Tensor:
        """The samples x [b, ...], changed; `x` itself stays as it is."""

    def fitted(self, x: Tensor) -> "Transform":
        """Itself, as it is for data of which `x` [n, ...] are training samples."""
        return self


@dataclass(frozen=True)
class Called(Transform):
    """A function `(x, rng)` that goes by `name`."""

    name: str
    function: Callable[[Tensor, np.random.Generator], Tensor]

    def apply(self, x: Tensor, rng: np.random.Generator) -> Tensor:
        return self.function(x, rng)


@dataclass(frozen=True)
class Transforms:
    """The transforms of a run; `seed` is the run's."""

    parts: tuple[Transform, ...] = ()
    seed: int = 0

    def __bool__(self) -> bool:
        return bool(self.parts)

    @property
    def fixed(self) -> "Transforms":
        """Those that every sample gets."""
        return Transforms(tuple(part for part in self.parts if not part.random), self.seed)

    @property
    def drawn(self) -> "Transforms":
        """Those that are drawn for every minibatch."""
        return Transforms(tuple(part for part in self.parts if part.random), self.seed)

    def augment(self, client: int, turn: int) -> Augment:
        """Return the function that changes the minibatches of a client's `turn`-th task, in their order."""
        if not self.parts:
            return lambda x: x
        rng = generator(self.seed, "transforms", client, turn)
        return lambda x: self._apply(x, rng)

    def all(self, x: Any) -> Any:
        """The array x [n, ...], changed by transforms that are not random."""
        if not self.parts:
            return x
        rng = generator(self.seed, "transforms")
        return np.ascontiguousarray(self._apply(torch.from_numpy(np.require(x, None, ["C", "W"])), rng).numpy())

    def _apply(self, x: Tensor, rng: np.random.Generator) -> Tensor:
        for part in self.parts:
            x = part.apply(x, rng)
        return x

    def fitted(self, x: Any) -> "Transforms":
        """As they are for data of which the array `x` holds training samples; ValueError for what does not fit them."""
        if isinstance(x, dict | tuple):
            raise ValueError(f"transforms: {called(self.parts[0])} takes samples of one input, and these have several")
        made: list[Transform] = []
        for part in self.fixed.parts:
            with calling("transforms", getattr(part, "function", part)):
                ready = part.fitted(torch.from_numpy(x))
                x = _tried(ready, torch.from_numpy(x), self.seed).numpy()
            made.append(ready)
        for part in self.drawn.parts:
            with calling("transforms", getattr(part, "function", part)):
                ready = part.fitted(torch.from_numpy(x))
                for rows in (x, x[:1]):
                    _tried(ready, torch.from_numpy(rows), self.seed)
            made.append(ready)
        return Transforms(tuple(made), self.seed)


def called(part: Any) -> str:
    name = getattr(part, "name", None) or getattr(part, "__qualname__", type(part).__name__)
    return str(name)


def _tried(part: Transform, x: Tensor, seed: int) -> Tensor:
    """What it makes of samples; ValueError if that can be no minibatch, or is not the same for the same draws."""
    before = x.clone()
    once, again = (part.apply(x, generator(seed, "transforms trial")) for _ in range(2))
    name = called(part)
    if not isinstance(once, Tensor):
        raise ValueError(f"transforms: {name} gave {type(once).__name__}; it must give a tensor of samples")
    if part.random and (once.shape != x.shape or once.dtype != x.dtype):
        raise ValueError(
            f"transforms: {name} makes {once.dtype} {list(once.shape)} of {x.dtype} {list(x.shape)}; one that is "
            "random must keep shape and type"
        )
    if len(once) != len(x):
        raise ValueError(f"transforms: {name} makes {len(once)} samples of {len(x)}; it must keep their number")
    if once.is_floating_point() and not torch.isfinite(once).all() and torch.isfinite(before).all():
        row = int(torch.isfinite(once).flatten(1).all(1).logical_not().nonzero()[0])
        raise ValueError(f"transforms: {name} makes NaN or an infinity of sample {row} of the first minibatch")
    if not _same(before, x):
        raise ValueError(f"transforms: {name} changes the samples that it is given; it must make new ones")
    if not _same(once, again):
        raise ValueError(f"transforms: {name} makes two different things of the same draws; draw from rng alone")
    return once


def _same(a: Tensor, b: Tensor) -> bool:
    """Whether they are equal, NaN to NaN, too."""
    return a.shape == b.shape and torch.allclose(a, b, rtol=0, atol=0, equal_nan=True)
