"""The check of a custom partitioner's result."""

from collections.abc import Mapping, Sequence

import numpy as np
import numpy.typing as npt

from fedraa.errors import InputError
from fedraa.messages import Index


def check_assignment(name: str, assigned: object, samples: int, clients: int) -> tuple[Index, Index]:
    """Check a custom partitioner's result. Return the rows in client order, and the offsets of the clients.

    Args:
        name: The name of the partitioner, for errors.
        assigned: The result of its method `assign`.
        samples: The number of training samples.
        clients: The number of clients.

    Raises:
        InputError: The result is malformed. The error names the partitioner, the client and the row.
    """
    field = f"partition: {name}"
    if not isinstance(assigned, Sequence | np.ndarray) or isinstance(assigned, str | bytes):
        hint = "return a list of its values" if isinstance(assigned, Mapping) else ""
        raise InputError(field, got=assigned, expected="a list with one array of rows per client", hint=hint)
    if len(assigned) != clients:
        raise InputError(field, f"it returned {len(assigned)} arrays", expected=f"one for each of {clients} clients")
    shards = [_check_shard(name, client, rows, samples) for client, rows in enumerate(assigned)]
    order = np.concatenate(shards)
    offsets = np.concatenate(([0], np.cumsum([len(shard) for shard in shards])))
    rows, times = np.unique(order, return_counts=True)
    if (times > 1).any():
        row = rows[times > 1][0]
        owners = np.searchsorted(offsets, np.flatnonzero(order == row)[:2], side="right") - 1
        problem = f"it returned row {row} for client {owners[0]} and again for client {owners[1]}"
        raise InputError(field, problem, expected="at most one client for a row")
    return order, offsets


def _check_shard(name: str, client: int, assigned: npt.ArrayLike, samples: int) -> Index:
    field = f"partition: {name} for client {client}"
    rows = np.asarray(assigned)
    if rows.ndim != 1 or (rows.size and rows.dtype.kind not in "iu"):
        raise InputError(field, got=rows, expected="an array of row numbers")
    if not rows.size:
        raise InputError(field, "it returned no row", expected="at least one row for every client")
    outside = rows[(rows < 0) | (rows >= samples)]
    if outside.size:
        raise InputError(field, got=int(outside[0]), expected=f"rows from 0 to {samples - 1}")
    return rows.astype(np.int64)
