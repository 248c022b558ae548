"""Groups of tasks as they travel to a worker: large arrays by reference, each once, small ones in the message."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import numpy.typing as npt
import ray

from actors.pool.data_blocks import Blocks
from actors.server.shard import NO_BUFFER
from actors.server.sharded_store import RemoteRef
from fedraa.messages import Task

Array = npt.NDArray[Any]
INLINE_BYTES = 100_000  # below, a copy in the message costs less than an object of its own


@dataclass(frozen=True, eq=False, slots=True)
class Job:
    """A task less its arrays. `arrays` are these in order, a number standing for one sent beside the group.

    The client's shard is rows [start, end) of the arrays `x` and `y` beside the group. If the buffer lies on shards of
    the server, `remote_args` is what is beside the group to get it: the route and the cuts.
    """

    header: Task
    arrays: list[Array | int]
    x: int
    y: int
    rows: tuple[int, int]
    remote_args: tuple[int, ...] = ()

    def task(self, shared_args: Sequence[Array]) -> Task:
        """The task as it was."""
        rest = iter([shared_args[array] if isinstance(array, int) else array for array in self.arrays])
        params = next(rest)
        mask = None if self.header.mask is None else next(rest)
        return replace(self.header, params=params, mask=mask, extras=dict(zip(self.header.extras, rest, strict=True)))


@dataclass
class _Object:
    """An array, how many tasks still need it and, once one was sent, where it is in the object store."""

    array: Array
    uses: int = 0
    ref: ray.ObjectRef[Any] | None = None


@dataclass
class TaskSerializer:
    """Packs tasks into groups. An array is put into the object store once, however many tasks carry it.

    Every task is first announced by `expect`, and done with by `release`.
    """

    blocks: Blocks
    _objects: dict[int, _Object] = field(default_factory=dict)

    def share(self, array: Array) -> Array:
        """The array as a view of the object store, for tasks to carry; itself if it is too small for that."""
        if array.nbytes < INLINE_BYTES:
            return array
        ref = ray.put(array)
        view: Array = ray.get(ref)
        self._objects[id(view)] = _Object(view, ref=ref)
        return view

    def expect(self, task: Task) -> None:
        for array in _large(task):
            self._objects.setdefault(id(array), _Object(array)).uses += 1

    def release(self, task: Task) -> None:
        for array in _large(task):
            shared = self._objects[id(array)]
            shared.uses -= 1
            if not shared.uses:
                del self._objects[id(array)]

    def samples(self, task: Task) -> int:
        """In the client's shard."""
        return int(self.blocks.offsets[task.client + 1] - self.blocks.offsets[task.client])

    def pack(self, tasks: Iterable[Task], blocks: Blocks) -> tuple[list[Job], list[ray.ObjectRef[Any]]]:
        """The jobs, and the objects that go beside them; the shards are those in `blocks`."""
        shared_args: dict[ray.ObjectRef[Any], int] = {}
        jobs = []
        for task in tasks:
            arrays = [
                array if array.nbytes < INLINE_BYTES else shared_args.setdefault(self._put(array), len(shared_args))
                for array in _arrays(task)
            ]
            header = replace(
                task,
                params=NO_BUFFER,
                mask=None if task.mask is None else np.empty(0, bool),
                extras=dict.fromkeys(task.extras, NO_BUFFER),
                remote_ref=None,
            )
            remote_args = (
                (task.remote_ref.route, *task.remote_ref.cuts) if isinstance(task.remote_ref, RemoteRef) else ()
            )
            x, y, rows = blocks.find(task.client)
            features, labels = (shared_args.setdefault(ref, len(shared_args)) for ref in (x, y))
            there = tuple(shared_args.setdefault(ref, len(shared_args)) for ref in remote_args)
            jobs.append(Job(header, arrays, features, labels, rows, there))
        return jobs, list(shared_args)

    def _put(self, array: Array) -> ray.ObjectRef[Any]:
        shared = self._objects[id(array)]
        if shared.ref is None:
            shared.ref = ray.put(array)
        return shared.ref


def _arrays(task: Task) -> list[Array]:
    params = task.params if task.remote_ref is None else NO_BUFFER
    return [params, *(() if task.mask is None else (task.mask,)), *task.extras.values()]


def _large(task: Task) -> list[Array]:
    return [array for array in _arrays(task) if array.nbytes >= INLINE_BYTES]
