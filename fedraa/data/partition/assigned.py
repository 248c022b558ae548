"""What an own partitioner has returned, checked."""

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

Index = npt.NDArray[np.int64]


def checked(name: str, given: object, samples: int, clients: int) -> tuple[Index, Index]:
    """The rows of all clients one after another, and where each client's begin and end.

    Raises ValueError with one sentence: the partitioner, the client, the row.
    """
    if not isinstance(given, Sequence | np.ndarray) or isinstance(given, str | bytes):
        raise ValueError(f"partition: {name} gave {type(given).__name__}; it must give one array of rows per client")
    if len(given) != clients:
        raise ValueError(f"partition: {name} gave {len(given)} arrays for {clients} clients; it must give one each")
    shards = [_shard(name, client, rows, samples) for client, rows in enumerate(given)]
    order = np.concatenate(shards)
    offsets = np.concatenate(([0], np.cumsum([len(shard) for shard in shards])))
    rows, times = np.unique(order, return_counts=True)
    if (times > 1).any():
        row = rows[times > 1][0]
        owners = np.searchsorted(offsets, np.flatnonzero(order == row)[:2], side="right") - 1
        raise ValueError(
            f"partition: {name} gave row {row} to client {owners[0]} and again to client {owners[1]}; "
            "a row has one owner at most"
        )
    return order, offsets


def _shard(name: str, client: int, given: npt.ArrayLike, samples: int) -> Index:
    rows = np.asarray(given)
    if rows.ndim != 1 or (rows.size and rows.dtype.kind not in "iu"):
        raise ValueError(
            f"partition: {name} gave client {client} {rows.dtype} of shape {rows.shape}; it must be integers, "
            "the numbers of rows"
        )
    if not rows.size:
        raise ValueError(f"partition: {name} gave client {client} no row; every client must have one at least")
    outside = rows[(rows < 0) | (rows >= samples)]
    if outside.size:
        raise ValueError(f"partition: {name} gave client {client} row {outside[0]}; there are rows 0 to {samples - 1}")
    return rows.astype(np.int64)
