"""The actor of a server shard, and the objects with which workers read and write its parameters.

This module does not import torch, so that a shard needs little memory and starts fast.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any
from uuid import uuid4

import numpy as np
import ray

from actors.ray_versions import AnyRef
from actors.server.ordered_calls import NumberedCall, OrderedReceiver
from fedraa.messages import Index, Receipt, RemoteBuffer, Update, Vector
from fedraa.server.stores.sharded import Shard, assemble_pieces
from fedraa.server.update_checks import join_receipts
from fedraa.vectors.finite import wrong_kind

NO_BUFFER: Vector = np.empty(0, np.float32)
# A call without an answer is made again after this number of seconds. The wait doubles after each repetition.
FIRST_WAIT_S = 30.0


def await_answers(calls: Sequence[Callable[[], AnyRef]]) -> list[Any]:
    """Make calls of actors, and return their answers. A call without an answer is made again after some time.

    Each function makes a call and returns the reference of its answer. If Ray loses the notice that the arguments of a
    call have arrived, the call never begins. A second execution of a call must have no effect.
    """
    attempts = [[call()] for call in calls]
    answers = []
    wait_s = FIRST_WAIT_S
    for call, refs in zip(calls, attempts, strict=True):
        ready, _ = ray.wait(refs, timeout=wait_s)
        while not ready:
            refs.append(call())
            wait_s *= 2
            ready, _ = ray.wait(refs, timeout=wait_s)
        answers.append(ray.get(ready[0]))
    return answers


class ShardActor(Shard):
    """A server shard (fedraa/server/stores) in a separate process, with the arguments of Shard.

    The server's calls are executed once and in order.
    """

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self._receiver = OrderedReceiver()

    def run_calls(self, calls: list[NumberedCall]) -> Any:
        """Execute the calls that the server sent, and return the answer of the last call."""
        return self._receiver.run(self, calls)

    def publish_cut(self, fragment: int) -> list[AnyRef]:
        """Store a copy of a fragment's current parameters, and return its reference in a list.

        Only the worker that trains the fragment fetches the copy.
        """
        return [ray.put(self.cut(fragment))]

    def hold(self, piece: Vector) -> list[AnyRef]:
        """Store a piece of a task's parameters after a resume. Return the reference of the piece in a list."""
        return [ray.put(piece)]

    # Ray must not repeat this call, because the repetition would also be counted.
    @ray.method(max_task_retries=0)
    def count_pull(self) -> None:
        """Count that a worker has fetched parameters."""
        self.pulls += 1

    # If an argument is a reference, Ray passes the value to which it points. The arguments of ordered calls are inside
    # a list, so Ray passes the reference itself to this method.
    def load_ref(self, params: AnyRef, pulls: int, pushes: int) -> None:
        """Restore a checkpoint. The first argument is a reference of the parameters."""
        self.load(ray.get(params), pulls, pushes)

    def load_mean_ref(self, mean: AnyRef) -> None:
        """Set the mean to the array that the Ray reference `mean` points to."""
        self.load_mean(ray.get(mean))

    def values(self) -> Vector:
        return self.params

    def count_traffic(self) -> tuple[str, int, int]:
        """Return the shard's node, the number of fetched copies, and the number of received updates."""
        return str(ray.get_runtime_context().get_node_id()), self.pulls, self.pushes


@dataclass(frozen=True, eq=False, slots=True)
class CutOnShards(RemoteBuffer):
    """The parameters of a fragment as references. Every server shard stores a piece of the fragment.

    Attributes:
        fragment: The number of the fragment.
        route: The Ray reference of the Route. The Route lists the coordinates on each shard.
        cuts: One Ray reference per shard, to the shard's answer. The answer is a list with one reference, to the piece.
    """

    fragment: int
    route: AnyRef
    cuts: tuple[AnyRef, ...]

    @property
    def refs(self) -> tuple[AnyRef, ...]:
        """The references that a worker needs to fetch the parameters."""
        return self.route, *self.cuts


@dataclass(frozen=True, eq=False)
class Route:
    """The server shards that store pieces of a fragment.

    Attributes:
        shards: The shards.
        places: For each shard, the indices of its coordinates within the fragment.
    """

    shards: tuple[Any, ...]
    places: tuple[Index, ...]

    def pull_buffer(self, cuts: Sequence[list[AnyRef]]) -> Vector:
        """Fetch a fragment's pieces from its shards, and return its parameters [k]."""
        pieces = ray.get([piece for [piece] in cuts])
        for shard in self.shards:
            shard.count_pull.remote()
        return assemble_pieces(self.places, pieces)

    def push(self, update: Update, cuts: Sequence[list[AnyRef]]) -> Update:
        """Send the trained parameters of a fragment to its shards.

        The returned update has the shards' receipt instead of the parameters.
        """
        push = uuid4().hex
        new = update.params
        wrong = wrong_kind(new, (sum(map(len, self.places)),))
        if wrong:
            receipt = Receipt(push, wrong=wrong)
        else:
            calls = [
                partial(shard.receive.remote, update.task, push, sent, new[place])
                for shard, place, [sent] in zip(self.shards, self.places, cuts, strict=True)
            ]
            receipt = join_receipts(push, await_answers(calls))
        return replace(update, params=NO_BUFFER, receipt=receipt)
