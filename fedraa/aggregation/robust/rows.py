"""The base class of robust aggregators. They compare the deltas of all clients in a round or a buffer.

A row [d] is the delta of one client, with NaN on the coordinates that the client did not train.
"""

from abc import abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt

from fedraa.aggregation.aggregator import Aggregator, ClientDelta, RoundTotals
from fedraa.messages import Mask, Vector
from fedraa.submodels.policies.policy import RunContext
from fedraa.vectors.chunked import map_chunks

Numbers = npt.NDArray[np.float64]
Rows = Sequence[Vector]
# With at least this number of clients, one attacker cannot decide the median.
MIN_MAJORITY = 3


@dataclass(frozen=True, eq=False)
class Votes:
    """The rows that a robust aggregator combines, in ascending order of their fragments and clients.

    Attributes:
        clients: The client of each row [n].
        rows: n rows [d], with NaN on coordinates that the client did not train.
        weights: The weights of the clients [n]. A rule uses them only if its docstring mentions weights.
        fragments: The group of each row [n]. If the aggregator has `row_per_fragment`, the rows of a fixed fragment are
            one group, and all other rows are another group. Otherwise all rows are one group.
    """

    clients: list[int]
    rows: list[Vector]
    weights: Numbers
    fragments: list[int]

    def by_fragment(self) -> list[Rows]:
        """Return one list of rows per fixed fragment. Without fixed fragments, the result is one list with all rows."""
        groups: dict[int, list[Vector]] = {}
        for row, fragment in zip(self.rows, self.fragments, strict=True):
            groups.setdefault(fragment, []).append(row)
        return list(groups.values())


@dataclass
class RobustAggregator(Aggregator):
    """An aggregator that compares the deltas of all clients. A subclass defines `combine`.

    Each client has one row, the mean of its updates in the round or buffer. If `row_per_fragment` is set, each client
    has one row for each fixed fragment that it trained: the mean of its updates of this fragment.

    Attributes:
        buffers: True if the rule also works on the buffer of an asynchronous server.
        row_per_fragment: True if the updates of a client are averaged separately for each fixed fragment.
        unprotected: Number of coordinates that too few clients trained in the last round or buffer. These coordinates
            keep their values or get the median.
        sent: Number of coordinates that clients can send. Personal layers are never sent.
    """

    buffers: ClassVar[bool] = True
    row_per_fragment: ClassVar[bool] = False
    state_fields: ClassVar[tuple[str, ...]] = ("_rows", "_counts", "_weights")

    def start(self, size: int, clients: int) -> None:
        self._size = size
        self._clients = clients
        self.sent = size
        self.unprotected = 0
        self._clear()

    def see(self, run: RunContext) -> None:
        self.sent = run.sent or self._size

    def _clear(self) -> None:
        # The rows [d]. `_row_number` returns the key of a row.
        self._rows: dict[int, Vector] = {}
        # For each row of several updates: the number of updates that trained each coordinate [d].
        self._counts: dict[int, Vector] = {}
        # The weights of each client's updates.
        self._weights: dict[int, list[float]] = {}

    @property
    def min_clients(self) -> int:
        """The smallest number of clients for which the rule protects against attackers."""
        return 1

    def count_tolerated(self, clients: int) -> int | None:
        """Return how many attackers among `clients` clients the rule withstands, or None if this is unknown."""
        return None

    @property
    def voters(self) -> int:
        """The number of clients that have sent a delta in this round or buffer."""
        return len(self._weights)

    def add(self, contribution: ClientDelta) -> None:
        number = self._row_number(contribution)
        row = np.full(self._size, np.nan, np.float32)
        row[contribution.where] = contribution.delta
        if number in self._rows:
            row = self._mean_with_earlier(number, row)
        self._rows[number] = row
        self._weights.setdefault(contribution.client, []).append(contribution.weight)

    def _row_number(self, contribution: ClientDelta) -> int:
        """Return the number of the row to which a delta belongs.

        It is the number of the client, plus (fragment + 1) * (number of clients) if each fragment has its own rows.
        """
        if not self.row_per_fragment or contribution.fragment is None:
            return contribution.client
        return contribution.client + (contribution.fragment + 1) * self._clients

    def _mean_with_earlier(self, number: int, row: Vector) -> Vector:
        """Return the mean [d] of a new row and the earlier rows with the same number in this buffer.

        Each coordinate is averaged over the rows in which it is not NaN. If it is NaN in all rows, it stays NaN.
        """
        earlier = self._rows[number]
        if number not in self._counts:
            self._counts[number] = (~np.isnan(earlier)).astype(np.float32)
        count = self._counts[number]
        trained = ~np.isnan(row)
        count[trained] += 1
        start = np.nan_to_num(earlier[trained], nan=0.0)
        mean = earlier.copy()
        mean[trained] = start + (row[trained] - start) / count[trained]
        return mean

    def finish(self, totals: RoundTotals) -> tuple[Vector, Mask]:
        return self.take_result()

    def take_result(self) -> tuple[Vector, Mask]:
        """Return the combined delta [d] and the mask [d] of coordinates to change. Remove all rows."""
        numbers = sorted(self._rows)
        clients = [number % self._clients for number in numbers]
        weights = np.array([float(np.mean(self._weights[client])) for client in clients])
        rows = [self._rows[number] for number in numbers]
        votes = Votes(clients, rows, weights, [number // self._clients for number in numbers])
        self.unprotected = 0
        delta = self.combine(votes).astype(np.float32)
        moved = ~np.isnan(delta)
        covered = np.logical_or.reduce([~np.isnan(row) for row in rows])
        self.unprotected += int((covered & ~moved).sum())
        self._clear()
        return np.nan_to_num(delta, nan=0.0), moved

    @abstractmethod
    def combine(self, votes: Votes) -> Numbers:
        """Return the combined delta [d], with NaN on the coordinates that keep their values."""

    def memory(self, size: int, clients: int) -> int:
        # Bytes per coordinate: 4 for each row, 4 for its counts, and 24 for the result and the masks. If clients have
        # several rows, the caller gives the number of rows as `clients`.
        return size * (8 * clients + 24)


def combine_chunks(rows: Rows, work: Callable[[Numbers], npt.NDArray[Any]]) -> Numbers:
    """Apply a function to the rows in chunks of coordinates. Return the joined results [d].

    Args:
        rows: n rows [d].
        work: A function from a chunk [n, k] to its result [k].
    """
    result = np.empty(rows[0].size)

    def combine_piece(piece: slice) -> None:
        result[piece] = work(stack_chunk(rows, piece))

    map_chunks(result.size, combine_piece)
    return result


def median_of_rows(rows: Rows, min_coverage: int) -> Numbers:
    """Return the median of each coordinate over the rows in which it is not NaN.

    With fewer than `min_coverage` such rows, the median is NaN.
    """

    def chunk_median(block: Numbers) -> Numbers:
        counts = count_rows(block)
        return np.where(counts >= min_coverage, middle_of_sorted(np.sort(block, axis=0), counts), np.nan)

    return combine_chunks(rows, chunk_median)


def middle_of_sorted(ordered: Numbers, counts: npt.NDArray[np.int64]) -> Numbers:
    """Return the median of each column of sorted values. A column of NaN gives NaN.

    Args:
        ordered: The values [n, k], ascending in each column, with NaN at the end.
        counts: The number of values that are not NaN in each column [k].
    """
    low = np.maximum(counts - 1, 0) // 2
    high = np.minimum(counts // 2, len(ordered) - 1)
    pair = [np.take_along_axis(ordered, place[None], axis=0)[0] for place in (low, high)]
    middle: Numbers = (pair[0] + pair[1]) / 2
    return middle


def count_rows(block: Numbers) -> npt.NDArray[np.int64]:
    """Return the number of values that are not NaN in each column [k] of a chunk [n, k]."""
    return np.asarray((~np.isnan(block)).sum(axis=0), np.int64)


def weighted_mean(rows: Rows, factors: Numbers, scales: Numbers | None = None) -> Numbers:
    """Return the weighted mean of each coordinate over the rows in which it is not NaN.

    Without such a row, the mean is NaN.

    Args:
        rows: The rows, n arrays [d].
        factors: Weight of each row in the mean [n].
        scales: A factor for the values of each row [n]. None means 1.
    """
    scaled = factors
    if scales is not None:
        scaled = factors * scales

    def chunk_mean(block: Numbers) -> Numbers:
        covered = ~np.isnan(block)
        total = (np.where(covered, block, 0.0) * scaled[:, None]).sum(axis=0)
        weight = (covered * factors[:, None]).sum(axis=0)
        return np.asarray(np.divide(total, weight, out=np.full(len(total), np.nan), where=weight > 0))

    return combine_chunks(rows, chunk_mean)


def measure_rows(
    rows: Rows, centre: npt.NDArray[np.floating] | None = None, sent: int | None = None
) -> tuple[Numbers, Numbers]:
    """Return two values of each row: its norm [n], and the number of its trained coordinates divided by `sent` [n].

    Args:
        rows: n rows [d], with NaN on coordinates that the client did not train.
        centre: A vector [d] that is subtracted from each row. None means 0.
        sent: Number of coordinates that clients can send. None means d.
    """

    def measure_piece(piece: slice) -> tuple[Numbers, Numbers]:
        block = stack_chunk(rows, piece)
        if centre is not None:
            block -= centre[piece]
        covered = ~np.isnan(block)
        block[~covered] = 0.0
        return np.einsum("ij,ij->i", block, block), covered.sum(axis=1).astype(np.float64)

    size = rows[0].size
    squared = np.zeros(len(rows))
    counts = np.zeros(len(rows))
    for chunk_squared, chunk_counts in map_chunks(size, measure_piece):
        squared += chunk_squared
        counts += chunk_counts
    return np.sqrt(squared), counts / max(1, sent or size)


def stack_chunk(rows: Rows, piece: slice) -> Numbers:
    """Return the coordinates `piece` of the rows as one array [n, k]."""
    return np.stack([row[piece] for row in rows]).astype(np.float64)
