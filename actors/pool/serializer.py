"""Transfer of tasks and clients' data to workers.

A large array is put into Ray's object store once. Small arrays are part of the messages.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any
from weakref import WeakKeyDictionary

import numpy as np
import numpy.typing as npt

from actors import runtime
from actors.ray_versions import AnyRef
from actors.server.shard import CutOnShards
from fedraa.client import Work
from fedraa.data import Federated
from fedraa.data.sources.clients import Source
from fedraa.data.tree import count_bytes, take_rows
from fedraa.messages import Index, LazyBuffer, RemoteBuffer, SharedBuffer, Task, Update, Vector

Array = npt.NDArray[Any]
# Below this size, a message is faster than an object in the object store.
INLINE_BYTES = 100_000
# A node fetches whole blocks. With small blocks, it fetches less data of clients that train on other nodes.
BLOCK_BYTES = 16 * 2**20


@dataclass(frozen=True, eq=False)
class Blocks:
    """The clients' training data in blocks of consecutive clients.

    Attributes:
        offsets: The first row of each client in the data of all clients, and the number of all rows [clients + 1].
        starts: The first client of each block.
        refs: The references of each block's inputs and labels; empty if workers read the samples from files.
    """

    offsets: Index
    starts: Index
    refs: list[tuple[AnyRef, AnyRef]]

    @classmethod
    def without_samples(cls, data: Federated) -> "Blocks":
        """Return blocks that only know how many samples each client has."""
        return cls(data.offsets, data.offsets[:0], [])

    def find(self, client: int) -> tuple[AnyRef, AnyRef, tuple[int, int]]:
        """Return the references of a client's block (inputs, labels), and its rows (start, end) in the block."""
        block = int(np.searchsorted(self.starts, client, side="right")) - 1
        base = self.offsets[self.starts[block]]
        rows = (int(self.offsets[client] - base), int(self.offsets[client + 1] - base))
        return (*self.refs[block], rows)


def put_blocks(data: Federated) -> Blocks:
    """Put the clients' training data into the object store, in blocks.

    Workers read blocks without a copy. Nothing is stored if workers read the samples from files.
    """
    if data.source is not None:
        return Blocks.without_samples(data)
    row_bytes = count_bytes(take_rows(data.x_train, slice(1)))
    starts = [0]
    size = 0
    for client, rows in enumerate(data.sizes.tolist()):
        if size and size + rows * row_bytes > BLOCK_BYTES:
            starts.append(client)
            size = 0
        size += rows * row_bytes
    refs = []
    for first, last in zip(starts, [*starts[1:], len(data.sizes)], strict=True):
        rows = slice(data.offsets[first], data.offsets[last])
        refs.append((runtime.put(take_rows(data.x_train, rows)), runtime.put(data.y_train[rows])))
    return Blocks(data.offsets, np.array(starts, np.int64), refs)


@dataclass(frozen=True, eq=False, slots=True)
class Job:
    """A task in the form in which it is sent to a worker.

    A call also has shared arguments, a list of arrays. An array that several tasks need is in this list once, and a job
    has the array's index instead of the array.

    Attributes:
        header: The task without arrays.
        buffer: The parameters of the task, or their index. For parameters on server shards, a tuple of indices: first
            the index of the Route to the shards, then for each shard the index of a reference to its parameters.
        mask: The mask of the task, packed to bits; None without a mask.
        extras: The extra buffers of the task by name.
        x: The index of the block with the client's inputs; -1 if the worker reads the samples from files.
        y: The index of the block with the client's labels; -1 if the worker reads the samples from files.
        rows: The client's rows in the block, (start, end).
    """

    header: Task
    buffer: Array | int | tuple[int, ...]
    mask: Array | int | None
    extras: dict[str, Array | int]
    x: int = -1
    y: int = -1
    rows: tuple[int, int] = (0, 0)

    def work(self, shared_args: Sequence[Any], source: Source | None = None) -> Work:
        """Return the complete task and the client's data. Fetch the parameters if they are on server shards.

        Args:
            shared_args: The arrays that all tasks of the call share.
            source: The source from which the worker reads the samples; None if `shared_args` has the data.
        """
        start, end = self.rows
        mask = None
        if self.mask is not None:
            bits = _resolve_array(self.mask, shared_args)
            mask = np.unpackbits(bits, count=self.header.size).view(np.bool_)
        task = replace(
            self.header,
            buffer=self._read_params(shared_args),
            mask=mask,
            extras={name: _resolve_array(array, shared_args) for name, array in self.extras.items()},
        )
        if source is not None:
            return Work(task, *source.shard(task.client, task.turn))
        return Work(task, take_rows(shared_args[self.x], slice(start, end)), shared_args[self.y][start:end])

    def answer(self, update: Update, shared_args: Sequence[Any]) -> Update:
        """Return the update to send to the server.

        If the model is on server shards, the trained parameters are sent to the shards. The update then has the receipt
        of the shards instead of parameters.
        """
        if not isinstance(self.buffer, tuple):
            return update
        route, *cuts = (shared_args[number] for number in self.buffer)
        answer: Update = route.push(update, cuts)
        return answer

    def _read_params(self, shared_args: Sequence[Any]) -> Vector:
        if not isinstance(self.buffer, tuple):
            return _resolve_array(self.buffer, shared_args)
        route, *cuts = (shared_args[number] for number in self.buffer)
        params: Vector = route.pull_buffer(cuts)
        return params


def _resolve_array(array: Array | int, shared_args: Sequence[Any]) -> Array:
    if not isinstance(array, int):
        return array
    shared: Array = shared_args[array]
    return shared


@dataclass
class TaskSerializer:
    """The conversion of tasks to jobs, which can be sent to workers.

    A SharedBuffer is put into the object store once. It stays there as long as a task refers to it.
    """

    _refs: WeakKeyDictionary[SharedBuffer, AnyRef] = field(default_factory=WeakKeyDictionary)

    def share(self, params: Vector) -> SharedBuffer:
        """Return a buffer with the parameters.

        Parameters of `INLINE_BYTES` or more are copied to the object store. The buffer is then a view of the copy.
        """
        if params.nbytes < INLINE_BYTES:
            return SharedBuffer(params)
        ref = runtime.put(params)
        shared = SharedBuffer(runtime.get(ref))
        self._refs[shared] = ref
        return shared

    def pack(self, tasks: Iterable[Task], blocks: Blocks) -> tuple[list[Job], list[AnyRef]]:
        """Return a job for each task of a call, and references of the call's shared arguments.

        The shared arguments are the large arrays that the jobs use.

        Args:
            tasks: The tasks that a worker gets in one call.
            blocks: The data of all clients.
        """
        shared_args: dict[AnyRef, int] = {}

        def number_of(ref: AnyRef) -> int:
            return shared_args.setdefault(ref, len(shared_args))

        def pack_array(array: Array | SharedBuffer | LazyBuffer) -> Array | int:
            if isinstance(array, LazyBuffer):
                array = array.make()
            values = array.values if isinstance(array, SharedBuffer) else array
            if values.nbytes < INLINE_BYTES:
                return values
            return number_of(self._put_array(array))

        def packed_buffer(task: Task) -> Array | int | tuple[int, ...]:
            if isinstance(task.buffer, CutOnShards):
                return tuple(map(number_of, task.buffer.refs))
            return pack_array(_local_buffer(task))

        jobs = []
        for task in tasks:
            job = Job(
                header=replace(task, buffer=RemoteBuffer(task.size), mask=None, extras={}),
                buffer=packed_buffer(task),
                mask=None if task.mask is None else pack_array(np.packbits(task.mask)),
                extras={name: pack_array(extra) for name, extra in task.extras.items()},
            )
            if blocks.refs:
                x, y, rows = blocks.find(task.client)
                job = replace(job, x=number_of(x), y=number_of(y), rows=rows)
            jobs.append(job)
        return jobs, list(shared_args)

    def _put_array(self, array: Array | SharedBuffer) -> AnyRef:
        if not isinstance(array, SharedBuffer):
            return runtime.put(array)
        if array not in self._refs:
            self._refs[array] = runtime.put(array.values)
        return self._refs[array]


def _local_buffer(task: Task) -> Vector | SharedBuffer:
    assert not isinstance(task.buffer, RemoteBuffer), (
        "a store without shards keeps the buffers of tasks in this process"
    )
    return task.buffer
