"""Messages between server, loop and workers: frozen headers around flat float32 buffers."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

Vector = npt.NDArray[np.float32]
Index = npt.NDArray[np.int64]
Shapes = tuple[tuple[int, ...], ...]
"""The shape of each tensor of a model, in the order of its parameters."""
State = dict[str, Any]
"""The state of an object: a nested dict (string keys) and lists of JSON values and numpy arrays.

`state()` returns it, `restore(state)` takes it. A state that was read from a file equals the written one, except that
tuples become lists, and NumPy scalars become Python's. An array that is in a state several times is written once and
read as one array.
"""
# The prefix of the names of buffers that a client keeps, which tasks and updates carry.
KEPT_PREFIX = "kept_"


@dataclass(frozen=True, eq=False, slots=True, weakref_slot=True)
class SharedBuffer:
    """The buffer [k] that several tasks share. An executor recognises the object and sends it only once."""

    values: Vector

    @property
    def size(self) -> int:
        return self.values.size


@dataclass(frozen=True, eq=False, slots=True)
class RemoteBuffer:
    """The buffer [size] of a submodel with values in another process. A subclass stores where the values are."""

    size: int


@dataclass(frozen=True, eq=False, slots=True)
class MadeBuffer:
    """A buffer that is made on access, from values that do not change while its task is in flight."""

    make: Callable[[], Vector]


Buffer = Vector | SharedBuffer | RemoteBuffer
Extra = Vector | SharedBuffer | MadeBuffer


class ExtraBuffers(NamedTuple):
    """The buffers that a protocol moves besides the submodel.

    Attributes:
        down: Buffers sent to the client, each as large as the trained part.
        up: Buffers sent to the server, each as large as the trained part.
        up_whole: Buffers sent to the server, each as large as the whole submodel.
    """

    down: int = 0
    up: int = 0
    up_whole: int = 0


@dataclass(frozen=True, slots=True)
class Receipt:
    """The result of checking a trained buffer [k], or a piece of one. The process that received the buffer checks it.

    Attributes:
        push: The id of the push.
        wrong: The type or the shape of the buffer, if it is not the expected one.
        bad: The number of values that are not finite.
        squared: The squared norm of the delta (trained minus sent), if it was measured.
        squared_sent: The squared norm of the sent buffer, if it was measured.
        largest: The largest absolute value, 0 if all values are too small to be wrong.
        sent: The largest absolute value of the sent buffer, needed if a trained value may be too large, otherwise 0.
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
    """The local training of one client from one dispatch to its update.

    Attributes:
        turn: Number of the client's earlier tasks, which seeds its minibatches.
        widths: Kept units per width group. They determine the submodel's shapes, so a worker needs no index sets.
        buffer: The submodel's parameters [k] at dispatch.
        cost: The modelled duration on the run's clock.
        mask: True for trained parameters [k], for methods that are defined element-wise.
        keeps_rest: True if parameters outside of the mask keep their values. Otherwise they are 0.
        extras: Buffers that local training needs besides the parameters, such as a control variate or a server
            momentum.
        bytes_up: The traffic of the update.
        steps: Number of minibatches. None: the settings of local training decide, and data passes begin
            again with every task.
        first: The number of the task's first minibatch, counted over all tasks of the client.
        asks: Names of buffers that the update must contain besides the parameters.
        cut_at: Number of local steps after which the client stops because of a deadline. None: the task is not cut.
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
    cut_at: int | None = None
    keeps_rest: bool = False

    @property
    def size(self) -> int:
        """The number of parameters of the submodel, in any process."""
        return self.buffer.size

    @property
    def nbytes(self) -> int:
        """The bytes of the submodel's parameters."""
        return self.size * np.dtype(np.float32).itemsize

    @property
    def params(self) -> Vector:
        """The values of the buffer [k]; TypeError if they are in another process."""
        if isinstance(self.buffer, RemoteBuffer):
            raise TypeError(f"the buffer of task {self.id} is in another process, which has its values")
        return values_of(self.buffer)

    def extra_values(self, name: str) -> Vector:
        """Return the values of one of the buffers in `extras`."""
        return values_of(self.extras[name])


def values_of(buffer: Extra) -> Vector:
    """Return the numbers of a buffer, which may be shared or computed on demand."""
    if isinstance(buffer, MadeBuffer):
        return buffer.make()
    if isinstance(buffer, SharedBuffer):
        return buffer.values
    return buffer


@dataclass(frozen=True, eq=False, slots=True)
class Update:
    """A client update: the trained buffer [k] and facts about the training.

    Attributes:
        steps: Number of local steps.
        loss: Mean training loss.
        seconds: The worker's real time.
        cosine: The cosine of the halves of the task's path, if the learning rate is adaptive.
        waited: On the wall clock, the real time from the dispatch to the arrival in which no worker trained the task.
        receipt: The check of the buffer. If there is a receipt, the buffer stays in the process that wrote the receipt,
            and `params` is empty.
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
    cosine: float | None = None
    waited: float = 0.0


@dataclass(frozen=True, slots=True)
class Fault:
    """A failure of a task or of a worker. `error` is the reason. The loop decides the next action.

    `task` is None if the worker had no task, because it was starting or evaluating. `worker` is None if no worker is
    known to have failed. `of_client` is True if training itself raised an error, or its update was refused, on a
    healthy worker.
    """

    task: int | None
    worker: int | None
    error: str
    of_client: bool = False


@dataclass(frozen=True, slots=True)
class Evaluation:
    """The metrics of the full model on the test set, by name, in the order of the columns of evals.csv.

    `seconds` is the worker's real time. `clients` has the results of some clients, if they are requested: their numbers
    as `client`, their `test_samples`, and a column for each metric, NaN for a client without test samples.
    """

    metrics: Mapping[str, float]
    seconds: float = field(default=0.0, compare=False)
    clients: Mapping[str, npt.NDArray[Any]] = field(default_factory=dict, compare=False)
