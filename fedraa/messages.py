"""What passes between server, loop and workers: frozen headers around flat float32 buffers."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

Vector = npt.NDArray[np.float32]
Index = npt.NDArray[np.int64]
State = dict[str, Any]
"""What a stateful object is made of: a nested dict (string keys) and lists of JSON values and numpy arrays.

`state()` gives it, `restore(state)` takes it back. What comes back from a file is equal to what went in but for
tuples, which come back as lists, and NumPy scalars, which come back as Python's. An array that is in a state
several times is written once and comes back as one array.
"""
# Begins the names of the buffers that a task and its update carry for the local optimizer.
EXTRA_PREFIX = "optimizer_"


@dataclass(frozen=True, eq=False, slots=True, weakref_slot=True)
class SharedBuffer:
    """The buffer [k] of tasks that carry the same: this object tells an executor so, which sends it but once."""

    values: Vector

    @property
    def size(self) -> int:
        return self.values.size


@dataclass(frozen=True, eq=False, slots=True)
class RemoteBuffer:
    """The buffer [size] of a submodel whose values are elsewhere; whoever keeps them says in a subclass where."""

    size: int


@dataclass(frozen=True, eq=False, slots=True)
class MadeBuffer:
    """A buffer that is made when its values are asked for, from what stays as it is while its task is out."""

    make: Callable[[], Vector]


Buffer = Vector | SharedBuffer | RemoteBuffer
Extra = Vector | SharedBuffer | MadeBuffer


class ExtraBuffers(NamedTuple):
    """Buffers that a protocol moves besides the submodel: of what is trained, and `up_whole` of the whole part."""

    down: int = 0
    up: int = 0
    up_whole: int = 0


@dataclass(frozen=True, slots=True)
class Receipt:
    """What those who were given a trained buffer [k] piece by piece say of it; `push` is what they know it by.

    `wrong` is its type or shape if that is not what was asked for, `bad` how many of its values are not finite;
    `squared` is the squared norm of its difference from what was sent, and `squared_sent` that of what was sent, if
    they measure it. `largest` is the largest of its values by size, or 0 if all are so small that none can be wrong;
    `sent` is that of what was sent where there may be something wrong, else 0.
    """

    push: str
    wrong: str | None
    bad: int
    squared: float
    squared_sent: float = 0.0
    largest: float = 0.0
    sent: float = 0.0


@dataclass(frozen=True, eq=False, slots=True)
class Task:
    """One piece of local training for one client.

    `buffer` [k] is that of the submodel as cut at dispatch; its shape is told by `widths` (kept units per width
    group), so a worker needs no index sets. `turn` counts the client's earlier tasks and seeds its minibatches.
    `cost` is the modelled duration on the run's clock. `mask` [k] (True = trained) is for methods defined
    element-wise. `extras` are further buffers that a local term needs (a control variate, a server momentum).
    `bytes_up` is what the answer is billed. `steps` minibatches are taken, the first of them the client's `first`-th of
    all its tasks; without `steps` the solver says how many, and they begin anew. `asks` names the further buffers that
    the answer must have.
    """

    id: int
    client: int
    turn: int
    fragment: int
    version: int
    step: int
    widths: tuple[int, ...]
    buffer: Buffer
    lr: float
    cost: float
    mask: npt.NDArray[np.bool_] | None = None
    extras: Mapping[str, Extra] = field(default_factory=dict)
    bytes_up: int = 0
    steps: int | None = None
    first: int = 0
    asks: tuple[str, ...] = ()

    @property
    def size(self) -> int:
        """How many parameters the submodel has, wherever their values are."""
        return self.buffer.size

    @property
    def nbytes(self) -> int:
        """Of the submodel's parameters."""
        return self.size * np.dtype(np.float32).itemsize

    @property
    def params(self) -> Vector:
        """The values of the buffer [k]; TypeError if they are elsewhere."""
        if isinstance(self.buffer, RemoteBuffer):
            raise TypeError(f"the buffer of task {self.id} is elsewhere; whoever keeps it has its values")
        return values_of(self.buffer)

    def extra(self, name: str) -> Vector:
        """The values of a further buffer."""
        return values_of(self.extras[name])


def values_of(buffer: Extra) -> Vector:
    if isinstance(buffer, MadeBuffer):
        return buffer.make()
    return buffer.values if isinstance(buffer, SharedBuffer) else buffer


@dataclass(frozen=True, eq=False, slots=True)
class Update:
    """What a client pushes back: the trained buffer [k] and how it came about.

    `steps` local steps were taken at a mean training loss `loss`; `seconds` is the worker's own time. With a `receipt`
    the buffer is where that is from, and `params` is empty.
    """

    task: int
    client: int
    fragment: int
    version: int
    params: Vector
    steps: int
    loss: float
    seconds: float
    extras: Mapping[str, Vector] = field(default_factory=dict)
    receipt: Receipt | None = None


@dataclass(frozen=True, slots=True)
class Fault:
    """A task that came to no result; `what` happened on `worker`. The loop decides what follows.

    `task` is None if the worker had none: it was starting, or evaluating. `worker` is None if no worker is known
    to be at fault. `of_client`: training itself raised, or its answer was refused, while the worker is well.
    """

    task: int | None
    worker: int | None
    what: str
    of_client: bool = False


@dataclass(frozen=True, slots=True)
class Evaluation:
    """The full model on the test set: its figures by name, in the order of the columns of evals.csv.

    `seconds` is the worker's own time. `clients` has the results of some clients, if these are asked for: their numbers
    as `client`, their `test_samples`, and a column for each figure, NaN for a client without test samples.
    """

    figures: Mapping[str, float]
    seconds: float = field(default=0.0, compare=False)
    clients: Mapping[str, npt.NDArray[Any]] = field(default_factory=dict, compare=False)
