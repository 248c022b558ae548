"""The clients' data in the object store: runs of whole shards, put once, read without a copy."""

from dataclasses import dataclass
from typing import Any

import numpy as np
import ray

from fedraa.data import Federated
from fedraa.messages import Index

BLOCK_BYTES = 16 * 2**20  # few objects for many small clients, no huge one for a node that trains one client


@dataclass(frozen=True, eq=False)
class Blocks:
    """Client n trains on rows of the block that holds it: `find(n)`. Without `refs` only shards' sizes are known."""

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
    """Put all training data into the object store, in blocks of whole clients."""
    row_bytes = data.x_train[:1].nbytes
    starts, size = [0], 0
    for client, rows in enumerate(data.sizes.tolist()):
        if size and size + rows * row_bytes > BLOCK_BYTES:
            starts.append(client)
            size = 0
        size += rows * row_bytes
    refs = []
    for first, last in zip(starts, [*starts[1:], len(data.sizes)], strict=True):
        rows = slice(data.offsets[first], data.offsets[last])
        refs.append((ray.put(data.x_train[rows]), ray.put(data.y_train[rows])))
    return Blocks(data.offsets, np.array(starts, np.int64), refs)
