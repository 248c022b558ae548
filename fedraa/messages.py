"""The messages between server, loop and workers."""

from collections.abc import Callable, Mapping
from dataclasses import KW_ONLY, dataclass, field
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from fedraa.errors import InputError

Vector = npt.NDArray[np.float32]
Index = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]
Mask = npt.NDArray[np.bool_]
Shapes = tuple[tuple[int, ...], ...]
"""The shape of each tensor of a model, in the order of its parameters."""
State = dict[str, Any]
"""The state of an object: a nested dict (string keys) and lists of JSON values and numpy arrays.

`state()` returns it, `restore(state)` takes it. A state that was read from a file equals the written one, with two
exceptions: tuples become lists, and NumPy scalars become Python scalars. If a state contains the same array several
times, the file has it once, and reading gives one array.
"""
# The prefix of the names of buffers that a client keeps between its tasks.
KEPT_PREFIX = "kept_"


@dataclass(frozen=True, eq=False, slots=True, weakref_slot=True)
class SharedBuffer:
    """A buffer [k] that several tasks share. An executor sends it to each worker once."""

    values: Vector

    @property
    def size(self) -> int:
        return self.values.size


@dataclass(frozen=True, eq=False, slots=True)
class RemoteBuffer:
    """A submodel's buffer [size] whose values are in another process. Subclasses store where the values are."""

    size: int


@dataclass(frozen=True, eq=False, slots=True)
class LazyBuffer:
    """A buffer that is computed when it is read. Its inputs do not change while the task is in flight."""

    make: Callable[[], Vector]


Buffer = Vector | SharedBuffer | RemoteBuffer
Extra = Vector | SharedBuffer | LazyBuffer


class ExtraBuffers(NamedTuple):
    """The numbers of buffers that a method sends besides the submodel's parameters.

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
    """The results of checking a received trained buffer [k], or a piece of it.

    Attributes:
        push: The id of the transfer in which the buffer was sent.
        wrong: The type or the shape of the buffer if it is not the expected one, else None.
        not_finite: The number of values that are not finite.
        squared: The squared norm of the delta (trained minus sent), if it was measured.
        squared_sent: The squared norm of the sent buffer, if it was measured.
        largest: The largest absolute trained value.
        largest_sent: The largest absolute value of the sent buffer; 0 if no check needs it, because `largest` is small.
    """

    push: str
    _: KW_ONLY
    wrong: str | None = None
    not_finite: int = 0
    squared: float = 0.0
    squared_sent: float = 0.0
    largest: float = 0.0
    largest_sent: float = 0.0


@dataclass(frozen=True, eq=False, slots=True)
class Task:
    """One job of local training, which a client answers with one Update.

    Attributes:
        turn: The number of earlier tasks of this client, which determines the order of the minibatches.
        version: The version of the sent fragment.
        step: The number of server steps before the dispatch.
        widths: The kept units in each width group (units that can be cut, such as the neurons of a layer). They
            determine the shapes of the submodel, so a worker needs no index sets.
        buffer: The submodel's parameters [k] at dispatch.
        cost: The modelled duration on the run's clock.
        mask: True for the parameters [k] that the client trains; None if it trains all.
        keeps_rest: True if parameters outside of the mask keep their values. False if they are 0 in training.
        extras: Other buffers of local training, such as a control variate or a server momentum.
        bytes_up: The bytes that the client sends with the update.
        steps: The number of minibatches. None: the settings of local training decide, and every task begins a new pass
            over the data.
        first: The number of the task's first minibatch, counted over all tasks of the client.
        asks: The names of buffers that the update must contain besides the parameters.
        cut_at: The number of local steps after which a deadline stops the client; None for no cut.
        by_size: `Assignment.by_size` of the task's assignment.
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
    by_size: bool = False

    @property
    def size_class(self) -> int:
        """The class of tasks whose losses, durations and norms can be compared.

        It is the number of parameters of a sampled dense submodel, and the fragment or the label of other tasks.
        """
        if self.by_size:
            return self.size
        return self.fragment

    @property
    def size(self) -> int:
        """The number of parameters of the submodel, even if their values are in another process."""
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
    """Return the values of a buffer, which may be shared or computed on demand."""
    if isinstance(buffer, LazyBuffer):
        return buffer.make()
    if isinstance(buffer, SharedBuffer):
        return buffer.values
    return buffer


@dataclass(frozen=True, eq=False, slots=True)
class Update:
    """A client update: the trained buffer [k] and facts about the training.

    Attributes:
        steps: The number of local steps.
        loss: The mean training loss.
        seconds: The real time of training at the worker.
        cosine: The cosine between the model's changes in the first and the second half of the steps, if the learning
            rate is adaptive. `HalfwayCosine` documents it.
        waited: On the wall clock, the seconds between dispatch and arrival in which no worker trained the task.
        receipt: The check of the trained buffer, if the buffer is in another process. `params` is empty in this case.
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
    """A failure of a task or of a worker.

    Attributes:
        error: The reason.
        task: The task; None if the worker was starting or evaluating.
        worker: The number of the worker; None if the server refused an update.
        of_client: True if the client may be the cause: its training raised an error on a healthy worker, or its update
            was refused.
        input_error: The error, if it is about the user's component or data.
    """

    task: int | None
    worker: int | None
    error: str
    of_client: bool = False
    input_error: InputError | None = None


@dataclass(frozen=True, slots=True)
class Evaluation:
    """The metrics of the full model on the test set.

    Attributes:
        metrics: The metrics by name, in the order of the columns of evals.csv.
        seconds: The real time of the evaluation at the worker.
        clients: The results of single clients, if the run requests them: the columns `client`, `test_samples`, and each
            metric (NaN without test samples).
    """

    metrics: Mapping[str, float]
    seconds: float = field(default=0.0, compare=False)
    clients: Mapping[str, npt.NDArray[Any]] = field(default_factory=dict, compare=False)
