"""A part alone, fed with inputs that are made up: what it answers, and what it does to them."""

import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt
from torch import Tensor

from fedraa.messages import Index, State, Vector

GIVEN = "never changes what it is given"
COVERED = "never touches what nobody covered"
SIZE, CLIENTS = 257, 4  # numbers in a model, unless it is to be large, and clients
SEED = 20


def rng(*index: int) -> np.random.Generator:
    """Inputs are functions of these numbers."""
    return np.random.default_rng([SEED, *index])


def numbers(size: int, *index: int) -> Vector:
    return rng(*index).standard_normal(size, np.float32)


def some(size: int, *index: int) -> Index:
    """About half of the coordinates but the last tenth, ascending."""
    return np.flatnonzero(rng(*index).random(size - size // 10) < 0.5)


class Drive(ABC):
    """One fresh copy of a part, asked for one decision after another; the inputs of the k-th depend on k alone.

    `broken` are the promises that it was seen to break, each with a sentence; `seconds` are those of each of its calls.
    """

    stateful: ClassVar[bool] = False
    """Whether answers may depend on those before, through `state` and `restore`."""
    covers: ClassVar[bool] = True
    """Whether there are coordinates that it could touch without leave."""
    pieces: ClassVar[bool] = False
    """Whether it is looked at in pieces, too."""
    sized: ClassVar[bool] = False
    """Whether it may keep numbers for each of the model's."""
    own: ClassVar[int] = 0
    """Bytes that the drive itself keeps for each number of the model."""
    further: Sequence[str] = ()
    """Promises of this kind of part alone."""

    def __init__(self, part: Any, size: int = SIZE) -> None:
        self.part, self.size = part, size
        self.broken: dict[str, str] = {}
        self.seconds: list[float] = []

    @abstractmethod
    def step(self, k: int) -> object:
        """The part's k-th decision, as what can be compared."""

    def state(self) -> State:
        return {}

    def restore(self, state: State) -> None:
        """Go on from there."""

    def claimed(self) -> int | None:
        """Bytes that the part says it takes for a model of this size; None if it is not asked to say."""
        return None

    @contextmanager
    def watched(self, given: Mapping[str, npt.NDArray[Any] | Tensor | slice]) -> Iterator[None]:
        """Times the calls within, and notes what of `given`, by name, they change."""
        before = {name: _bytes(value) for name, value in given.items()}
        started = time.perf_counter()
        yield
        self.seconds.append(time.perf_counter() - started)
        for name, value in given.items():
            if _bytes(value) != before[name]:
                self.broken.setdefault(GIVEN, f"changes {name}, which others go on reading; let it work on a copy")


def _bytes(value: npt.NDArray[Any] | Tensor | slice) -> bytes:
    if isinstance(value, slice):
        return b""
    return (value.numpy() if isinstance(value, Tensor) else value).tobytes()


def answers(start: Callable[[], Drive], steps: int) -> tuple[list[object], Drive]:
    """What a fresh copy answers to so many steps."""
    drive = start()
    return [drive.step(k) for k in range(steps)], drive
