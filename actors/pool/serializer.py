"""How tasks and clients' data travel to workers: large arrays by reference, each once, small ones in the message."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any
from weakref import WeakKeyDictionary

import numpy as np
import numpy.typing as npt
import ray

from actors.server.shard import CutOnShards
from fedraa.client import Work
from fedraa.data import Federated
from fedraa.data.sources.clients import Source
from fedraa.data.tree import nbytes, take
from fedraa.messages import Index, MadeBuffer, RemoteBuffer, SharedBuffer, Task, Update, Vector

Array = npt.NDArray[Any]
INLINE_BYTES = 100_000  # below, a copy in the message costs less than an object of its own
BLOCK_BYTES = 16 * 2**20  # few objects for many small clients, no huge one for a node that trains one client


@dataclass(frozen=True, eq=False)
class Blocks:
    """The clients' data: client n trains on rows of the block that holds it, `find(n)`.

    Without `refs` only shards' sizes are known; workers that train all the same read the clients' samples themselves.
    """

    offsets: Index
    starts: Index
    refs: list[tuple[ray.ObjectRef[Any], ray.ObjectRef[Any]]]

    def find(self, client: int) -> tuple[ray.ObjectRef[Any], ray.ObjectRef[Any], tuple[int, int]]:
        """The block's features and labels, and the client's rows in it."""
        block = int(np.searchsorted(self.starts, client, side="right")) - 1
        base = self.offsets[self.starts[block]]
        rows = (int(self.offsets[client] - base), int(self.offsets[client + 1] - base))
        return (*self.refs[block], rows)


def put_blocks(data: Federated) -> Blocks:
    """Put all training data into the object store, in blocks of whole clients, to be read without a copy.

    Nothing is put there that workers read themselves.
    """
    if data.source is not None:
        return Blocks(data.offsets, data.offsets[:0], [])
    row_bytes = nbytes(take(data.x_train, slice(1)))
    starts, size = [0], 0
    for client, rows in enumerate(data.sizes.tolist()):
        if size and size + rows * row_bytes > BLOCK_BYTES:
            starts.append(client)
            size = 0
        size += rows * row_bytes
    refs = []
    for first, last in zip(starts, [*starts[1:], len(data.sizes)], strict=True):
        rows = slice(data.offsets[first], data.offsets[last])
        refs.append((ray.put(take(data.x_train, rows)), ray.put(data.y_train[rows])))
    return Blocks(data.offsets, np.array(starts, np.int64), refs)


@dataclass(frozen=True, eq=False, slots=True)
class Job:
    """A task as it travels: a `header` without arrays; a number stands for one of the call's shared arguments.

    `buffer` is the task's; if it is on shards of the server, the route there and each shard's cut. `mask` is in bits.
    The client's data are rows [start, end) of the arguments `x` and `y`, or read by the worker (-1).
    """

    header: Task
    buffer: Array | int | tuple[int, ...]
    mask: Array | int | None
    extras: dict[str, Array | int]
    x: int
    y: int
    rows: tuple[int, int]

    def work(self, shared_args: Sequence[Any], source: Source | None = None) -> Work:
        """The task as it was, its buffer fetched if it is on shards, and the client's data, perhaps from `source`."""
        start, end = self.rows
        mask = None if self.mask is None else _found(self.mask, shared_args)
        task = replace(
            self.header,
            buffer=self._params(shared_args),
            mask=None if mask is None else np.unpackbits(mask, count=self.header.size).view(np.bool_),
            extras={name: _found(array, shared_args) for name, array in self.extras.items()},
        )
        if source is not None:
            return Work(task, *source.shard(task.client, task.turn))
        return Work(task, take(shared_args[self.x], slice(start, end)), shared_args[self.y][start:end])

    def answer(self, update: Update, shared_args: Sequence[Any]) -> Update:
        """The update; if the task's buffer is on shards of the server, a receipt from there in place of its buffer."""
        if not isinstance(self.buffer, tuple):
            return update
        route, *cuts = (shared_args[number] for number in self.buffer)
        answer: Update = route.push(update, cuts)
        return answer

    def _params(self, shared_args: Sequence[Any]) -> Vector:
        if not isinstance(self.buffer, tuple):
            return _found(self.buffer, shared_args)
        route, *cuts = (shared_args[number] for number in self.buffer)
        params: Vector = route.pull(cuts)
        return params


def _found(array: Array | int, shared_args: Sequence[Any]) -> Array:
    found: Array = shared_args[array] if isinstance(array, int) else array
    return found


@dataclass
class TaskSerializer:
    """Makes jobs of tasks. A shared buffer is put into the object store once, and stays while any task carries it."""

    _refs: WeakKeyDictionary[SharedBuffer, ray.ObjectRef[Any]] = field(default_factory=WeakKeyDictionary)

    def share(self, params: Vector) -> SharedBuffer:
        """The buffer, as a view of the object store unless it is too small for that."""
        if params.nbytes < INLINE_BYTES:
            return SharedBuffer(params)
        ref = ray.put(params)
        shared = SharedBuffer(ray.get(ref))
        self._refs[shared] = ref
        return shared

    def pack(self, tasks: Iterable[Task], blocks: Blocks) -> tuple[list[Job], list[ray.ObjectRef[Any]]]:
        """The jobs of a call and its shared arguments, each of which is there once; the data are those in `blocks`."""
        shared_args: dict[ray.ObjectRef[Any], int] = {}

        def number(ref: ray.ObjectRef[Any]) -> int:
            return shared_args.setdefault(ref, len(shared_args))

        def packed(array: Array | SharedBuffer | MadeBuffer) -> Array | int:
            array = array.make() if isinstance(array, MadeBuffer) else array
            values = array.values if isinstance(array, SharedBuffer) else array
            return values if values.nbytes < INLINE_BYTES else number(self._put(array))

        jobs = []
        for task in tasks:
            x, y, rows = blocks.find(task.client) if blocks.refs else (None, None, (0, 0))
            job = Job(
                header=replace(task, buffer=RemoteBuffer(task.size), mask=None, extras={}),
                buffer=tuple(map(number, task.buffer.refs))
                if isinstance(task.buffer, CutOnShards)
                else packed(_here(task)),
                mask=None if task.mask is None else packed(np.packbits(task.mask)),
                extras={name: packed(extra) for name, extra in task.extras.items()},
                x=-1 if x is None else number(x),
                y=-1 if y is None else number(y),
                rows=rows,
            )
            jobs.append(job)
        return jobs, list(shared_args)

    def _put(self, array: Array | SharedBuffer) -> ray.ObjectRef[Any]:
        if not isinstance(array, SharedBuffer):
            return ray.put(array)
        if array not in self._refs:
            self._refs[array] = ray.put(array.values)
        return self._refs[array]


def _here(task: Task) -> Vector | SharedBuffer:
    assert not isinstance(task.buffer, RemoteBuffer), "only shards of the server keep buffers elsewhere"
    return task.buffer
