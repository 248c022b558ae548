"""A data source in Ray's object store, which each process fetches once."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import lru_cache

import ray

from fedraa.data.sources.clients import Shard, Source
from fedraa.data.tree import Array, Tree
from fedraa.messages import Index


@dataclass(frozen=True)
class SharedSource:
    """A data source that is sent to workers as a reference. Its arrays are not copied.

    Attributes:
        ref: The reference of the source.
    """

    ref: "ray.ObjectRef[Source]"

    def client(self, client: int) -> tuple[Tree, Array]:
        return _fetch_source(self.ref).client(client)

    def shard(self, client: int, turn: int) -> Shard:
        return _fetch_source(self.ref).shard(client, turn)

    def inputs(self, chosen: Index) -> Tree:
        return _fetch_source(self.ref).inputs(chosen)

    def parts(self, sizes: Iterable[int]) -> Iterator[Tree]:
        return _fetch_source(self.ref).parts(sizes)


@lru_cache(maxsize=1)
def _fetch_source(ref: "ray.ObjectRef[Source]") -> Source:
    return ray.get(ref)
