"""Groups of tasks as they travel to a worker: large arrays by reference, each once, small ones in the message."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import numpy.typing as npt
import ray

from actors.blocks import Blocks
from actors.shard import NOTHING
from actors.shards import Lies
from fedraa.messages import Task

Array = npt.NDArray[Any]
INLINE_BYTES = 100_000  # below, a copy in the message costs less than an object of its own


@dataclass(frozen=True, eq=False, slots=True)
class Job:
    """A task less its arrays. `arrays` are these in order, a number standing for one sent beside the group.

    The client's shard is rows [start, end) of the arrays `x` and `y` beside the group. If the buffer lies on shards of
    the server, `far` is what is beside the group to get it: the route and the cuts.
    """

    header: Task
    arrays: list[Array | int]
    x: int
    y: int
    rows: tuple[int, int]
    far: tuple[int, ...] = ()

    def task(self, beside: Sequence[Array]) -> Task:
        """The task as it was."""
        rest = iter([beside[array] if isinstance(array, int) else array for array in self.arrays])
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
class Packer:
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
        beside: dict[ray.ObjectRef[Any], int] = {}
        jobs = []
        for task in tasks:
            arrays = [
                array if array.nbytes < INLINE_BYTES else beside.setdefault(self._put(array), len(beside))
                for array in _arrays(task)
            ]
            header = replace(
                task,
                params=NOTHING,
                mask=None if task.mask is None else np.empty(0, bool),
                extras=dict.fromkeys(task.extras, NOTHING),
                lies=None,
            )
            far = (task.lies.route, *task.lies.cuts) if isinstance(task.lies, Lies) else ()
            x, y, rows = blocks.find(task.client)
            features, labels = (beside.setdefault(ref, len(beside)) for ref in (x, y))
            there = tuple(beside.setdefault(ref, len(beside)) for ref in far)
            jobs.append(Job(header, arrays, features, labels, rows, there))
        return jobs, list(beside)

    def _put(self, array: Array) -> ray.ObjectRef[Any]:
        shared = self._objects[id(array)]
        if shared.ref is None:
            shared.ref = ray.put(array)
        return shared.ref


def _arrays(task: Task) -> list[Array]:
    params = task.params if task.lies is None else NOTHING
    return [params, *(() if task.mask is None else (task.mask,)), *task.extras.values()]


def _large(task: Task) -> list[Array]:
    return [array for array in _arrays(task) if array.nbytes >= INLINE_BYTES]
