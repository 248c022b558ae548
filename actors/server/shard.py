"""A shard of the server as an actor, and how a worker deals with it. Without torch it is small and starts soon."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any
from uuid import uuid4

import numpy as np
import ray

from fedraa.messages import Index, Receipt, RemoteBuffer, Update, Vector
from fedraa.server.stores.sharded import Shard, assemble_pieces
from fedraa.server.update_checks import joined
from fedraa.vectors.finite import wrong_kind

NO_BUFFER: Vector = np.empty(0, np.float32)


class ShardActor(Shard):
    """A shard in a process of its own. It answers in the order in which the server asks.

    A cut comes as a list of one object that this actor owns: its bytes, few or many, go only to who reads that.
    """

    def publish(self, fragment: int) -> list[ray.ObjectRef[Any]]:
        return [ray.put(self.cut(fragment))]

    def hold(self, piece: Vector) -> list[ray.ObjectRef[Any]]:
        """A piece of a cut from before."""
        return [ray.put(piece)]

    def pulled(self) -> None:
        """A worker has fetched a piece."""
        self.pulls += 1

    def values(self) -> Vector:
        return self.params

    def tally(self) -> tuple[str, int, int]:
        """Its node, and how often it was pulled from and pushed to."""
        return str(ray.get_runtime_context().get_node_id()), self.pulls, self.pushes


@dataclass(frozen=True, eq=False, slots=True)
class CutOnShards(RemoteBuffer):
    """The buffer of a fragment as its shards have cut it: the Route to them, and each one's cut."""

    fragment: int
    route: ray.ObjectRef[Any]
    cuts: tuple[ray.ObjectRef[Any], ...]

    @property
    def refs(self) -> tuple[ray.ObjectRef[Any], ...]:
        """All that a worker needs to get it."""
        return self.route, *self.cuts


@dataclass(frozen=True, eq=False)
class Route:
    """How a worker gets at a fragment: the shards that have pieces of it, and the pieces' places in its buffer."""

    shards: tuple[Any, ...]
    places: tuple[Index, ...]

    def pull(self, cuts: Sequence[list[ray.ObjectRef[Any]]]) -> Vector:
        """The buffer [k], from each shard's cut."""
        pieces = ray.get([piece for [piece] in cuts])
        for shard in self.shards:
            shard.pulled.remote()
        return assemble_pieces(self.places, pieces)

    def push(self, update: Update, cuts: Sequence[list[ray.ObjectRef[Any]]]) -> Update:
        """Gives the shards their pieces of the update's buffer; the update, with their receipt instead."""
        push, new = uuid4().hex, update.params
        if wrong := wrong_kind(new, (sum(map(len, self.places)),)):
            receipt = Receipt(push, wrong, 0, 0.0)
        else:
            answers = ray.get(
                [
                    shard.receive.remote(update.task, push, sent, new[place])
                    for shard, place, [sent] in zip(self.shards, self.places, cuts, strict=True)
                ]
            )
            receipt = joined(push, answers)
        return replace(update, params=NO_BUFFER, receipt=receipt)
