"""A server shard as an actor, and the workers' access to it.

The module does not import torch, so that a shard is small and starts fast.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
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


class ShardActor(Shard):
    """A shard in a separate process. The server's changes and cuts take effect once and in order.

    A cut is returned as a list with one reference to an object of this actor, so that its bytes travel only to the
    process that reads it. The arguments are those of Shard.
    """

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self._receiver = OrderedReceiver()

    def run_calls(self, calls: list[NumberedCall]) -> Any:
        """Make the server's calls, and return the answer of the last one."""
        return self._receiver.run(self, calls)

    def publish_cut(self, fragment: int) -> list[AnyRef]:
        return [ray.put(self.cut(fragment))]

    def hold(self, piece: Vector) -> list[AnyRef]:
        """Store a piece of a cut from a checkpoint and return its reference."""
        return [ray.put(piece)]

    # A repeated call would be counted twice. A lost call is not counted.
    @ray.method(max_task_retries=0)
    def count_pull(self) -> None:
        """Count a fetch by a worker."""
        self.pulls += 1

    def values(self) -> Vector:
        return self.params

    def count_traffic(self) -> tuple[str, int, int]:
        """Return the node and the numbers of pulls and pushes."""
        return str(ray.get_runtime_context().get_node_id()), self.pulls, self.pushes


@dataclass(frozen=True, eq=False, slots=True)
class CutOnShards(RemoteBuffer):
    """The buffer of a fragment on the shards: the Route to the shards, and the cut of each shard."""

    fragment: int
    route: AnyRef
    cuts: tuple[AnyRef, ...]

    @property
    def refs(self) -> tuple[AnyRef, ...]:
        """Return all references that a worker needs to fetch the buffer."""
        return self.route, *self.cuts


@dataclass(frozen=True, eq=False)
class Route:
    """A worker's access to a fragment: the shards with the fragment's pieces, and the positions of the pieces."""

    shards: tuple[Any, ...]
    places: tuple[Index, ...]

    def pull_buffer(self, cuts: Sequence[list[AnyRef]]) -> Vector:
        """Return the buffer [k], assembled from the cut of each shard."""
        pieces = ray.get([piece for [piece] in cuts])
        for shard in self.shards:
            shard.count_pull.remote()
        return assemble_pieces(self.places, pieces)

    def push(self, update: Update, cuts: Sequence[list[AnyRef]]) -> Update:
        """Send each shard its piece of the trained buffer.

        Return the update with the receipt of the shards instead of the buffer.
        """
        push = uuid4().hex
        new = update.params
        wrong = wrong_kind(new, (sum(map(len, self.places)),))
        if wrong:
            receipt = Receipt(push, wrong, 0, 0.0)
        else:
            answers = ray.get(
                [
                    shard.receive.remote(update.task, push, sent, new[place])
                    for shard, place, [sent] in zip(self.shards, self.places, cuts, strict=True)
                ]
            )
            receipt = join_receipts(push, answers)
        return replace(update, params=NO_BUFFER, receipt=receipt)
