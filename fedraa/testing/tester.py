"""The base class of testers. A tester calls one component with synthetic inputs, and finds forbidden side effects."""

import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt
from torch import Tensor

from fedraa.components.state import Stateful
from fedraa.messages import Index, Vector

GIVEN = "never changes its arguments"
COVERED = "never changes uncovered coordinates"
SIZE = 257
CLIENTS = 4
SEED = 20


def make_rng(*index: int) -> np.random.Generator:
    """Return a random generator that is seeded with the numbers `index`."""
    return np.random.default_rng([SEED, *index])


def draw_numbers(size: int, *index: int) -> Vector:
    """Return normally distributed numbers [size] from a generator that is seeded with `index`."""
    return make_rng(*index).standard_normal(size, np.float32)


def draw_coordinates(size: int, *index: int) -> Index:
    """Return about half of a model's coordinates (parameters), ascending. The last tenth is never included."""
    return np.flatnonzero(make_rng(*index).random(size - size // 10) < 0.5)


class Tester(Stateful, ABC):
    """A test that calls one component with synthetic inputs. The inputs of call k depend only on k.

    Attributes:
        broken: A sentence about each requirement that the component did not meet.
        seconds: The durations of all calls of the component.
    """

    stateful: bool = False
    """True if decisions may depend on earlier decisions, through a state that `state` and `restore` handle."""
    covers: ClassVar[bool] = True
    """True if components of this kind get arrays of which they must not change some coordinates."""
    pieces: ClassVar[bool] = False
    """True if runs call the component with pieces of an array, which must give the same bits as the whole array."""
    sized: ClassVar[bool] = False
    """True if the component may keep values for each parameter of the model."""
    own: ClassVar[int] = 0
    """Number of bytes that the tester itself keeps for each parameter of the model."""
    further: Sequence[str] = ()
    """Requirements of only this kind of component."""
    state_fields: ClassVar[tuple[str, ...]] = ()

    def __init__(self, part: Any, size: int = SIZE) -> None:
        self.part = part
        self.size = size
        self.broken: dict[str, str] = {}
        self.seconds: list[float] = []

    @abstractmethod
    def step(self, k: int) -> object:
        """Call the component for the k-th time. Return its result in a form that `==` can compare."""

    def claimed_bytes(self) -> int | None:
        """Return the memory in bytes that the component declares, or None if components of its kind declare none."""
        return None

    @contextmanager
    def watch_arguments(self, arguments: Mapping[str, npt.NDArray[Any] | Tensor | slice]) -> Iterator[None]:
        """Measure the duration of the block. Record a broken requirement if the block changes one of these arrays."""
        before = {name: _value_bytes(value) for name, value in arguments.items()}
        started = time.perf_counter()
        yield
        self.seconds.append(time.perf_counter() - started)
        for name, value in arguments.items():
            if _value_bytes(value) != before[name]:
                self.broken.setdefault(
                    GIVEN, f"changes its argument {name}, which other code reads later; let it work on a copy"
                )


def _value_bytes(value: npt.NDArray[Any] | Tensor | slice) -> bytes:
    if isinstance(value, slice):
        return b""
    if isinstance(value, Tensor):
        value = value.numpy()
    return value.tobytes()


def collect_answers(start: Callable[[], Tester], steps: int) -> tuple[list[object], Tester]:
    """Start a tester and call its component. Return the results and the tester.

    Args:
        start: A function that returns a new tester.
        steps: The number of calls.
    """
    tester = start()
    return [tester.step(k) for k in range(steps)], tester
