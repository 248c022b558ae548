"""The division of a model among server shards, and the operations of one shard."""

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from fedraa.messages import Index, Mask, Receipt, Vector
from fedraa.server.mixing import add_delta, blend_weights, update_mean
from fedraa.server.update_checks import receipt_of
from fedraa.vectors.index_ranges import CoordinateSet, as_ranges, common_places, index_of

# Maximum number of finished tasks that a shard remembers.
MAX_CLOSED_TASKS = 1024


@dataclass(frozen=True, eq=False)
class Piece:
    """The part of a fragment that one shard holds.

    Attributes:
        shard: The shard, from 0.
        place: Positions [p] of the piece's values in the buffer [k] of the fragment.
        where: Positions [p] of the piece's values in the array [d_s] of the shard.
        common: Positions, in the piece, of the coordinates to which a rule's `shared_weight` applies.
    """

    shard: int
    place: Index
    where: Index
    common: Index


@dataclass(frozen=True, eq=False)
class Split:
    """The division of a model among shards.

    A coordinate is on shard j % shards, where j is the first fragment that contains it. Coordinates in no fragment are
    never trained and are on no shard.

    Attributes:
        own: For each shard, the coordinates on it, ascending.
        pieces: For each fragment, one `Piece` for each shard that has some of the fragment's coordinates.
    """

    own: tuple[Index, ...]
    pieces: tuple[tuple[Piece, ...], ...]

    @classmethod
    def of(cls, indices: Sequence[Index], size: int, shards: int, full_weight: Mask | None = None) -> "Split":
        """Divide a model among shards.

        Args:
            indices: The coordinates [k] of each fragment.
            size: Number of parameters of the model, d.
            shards: The number of shards.
            full_weight: Mask [d] of coordinates to which the rule's `shared_weight` does not apply; None for none.
        """
        home = np.full(size, -1)
        for j, index in reversed(list(enumerate(indices))):
            home[index] = j % shards
        own = tuple(np.flatnonzero(home == shard) for shard in range(shards))
        pieces = []
        for index, common in zip(indices, common_places(indices, size, full_weight), strict=True):
            places = [(shard, np.flatnonzero(home[index] == shard)) for shard in range(shards)]
            pieces.append(
                tuple(
                    Piece(shard, place, np.searchsorted(own[shard], index[place]), _positions_in(common, place))
                    for shard, place in places
                    if len(place)
                )
            )
        return cls(own, tuple(pieces))


def _positions_in(wanted: Index, places: Index) -> Index:
    """Return the positions in `places` of those values that are also in `wanted`."""
    return np.flatnonzero(np.isin(places, wanted))


def assemble_pieces(places: Sequence[Index], pieces: Sequence[Vector]) -> Vector:
    """Return the buffer [k] of a fragment.

    Args:
        places: For each piece, the positions of its values in the buffer.
        pieces: The values of each piece.
    """
    buffer = np.empty(sum(map(len, places)), np.float32)
    for place, piece in zip(places, pieces, strict=True):
        buffer[place] = piece
    return buffer


class Shard:
    """A server shard, which holds some of the model's coordinates.

    It sends pieces of fragments to workers, and mixes trained pieces into its coordinates. It keeps a piece that a
    worker pushed (sent) until the server calls `mix` or `forget_task` for the piece's task.

    Args:
        params: The initial values of the shard's coordinates [d_s].
        where: For each fragment, the positions of its piece in these coordinates. None if no piece of the fragment is
            on this shard.
        norms: True to measure the norms of deltas.
        adds_deltas: True to add deltas, False to mix trained values in.
        common: For each fragment, the positions, in its piece, of the coordinates that all fragments contain.
        shared_weight: The factor by which deltas at the coordinates of `common` are multiplied. Unused if
            `adds_deltas` is False.
    """

    def __init__(
        self,
        params: Vector,
        where: Sequence[Index | None],
        *,
        norms: bool,
        adds_deltas: bool = False,
        common: Sequence[Index | None] = (),
        shared_weight: float = 1.0,
    ) -> None:
        self.params = np.array(params)
        self.pulls = self.pushes = 0
        self._where = [None if places is None else as_ranges(places) for places in where]
        self._norms = norms
        self._adds_deltas = adds_deltas
        self._common = common or [None] * len(where)
        self._shared_weight = shared_weight
        self._pushed: dict[int, dict[str, Vector]] = {}
        # The last tasks whose pieces were mixed in or discarded. Pieces that arrive later for these tasks are ignored.
        self._closed: deque[int] = deque(maxlen=MAX_CLOSED_TASKS)
        self._mean: Vector | None = None

    def cut(self, fragment: int) -> Vector:
        """Return a copy of this shard's piece of a fragment."""
        return np.array(self.params[index_of(self._coordinates_of(fragment))])

    def receive(self, task: int, push: str, sent: Vector, new: Vector) -> Receipt:
        """Check a trained piece, and keep a valid one. A repeated push has no effect.

        Args:
            task: The number of the task.
            push: The id of the push.
            sent: The piece that the worker received.
            new: The trained piece.
        """
        receipt = receipt_of(sent, new, push, norms=self._norms, is_piece=True)
        is_repeated = task in self._closed or push in self._pushed.get(task, ())
        if receipt.wrong is None and not receipt.not_finite and not is_repeated:
            self.pushes += 1
            kept = new - sent if self._adds_deltas else new
            self._pushed.setdefault(task, {})[push] = kept
        return receipt

    def mix(self, fragment: int, task: int, push: str, weight: float) -> None:
        """Mix one pushed piece into the coordinates, and discard all other pushes for its task.

        Args:
            fragment: The fragment of the task.
            task: The number of the task.
            push: The id of the push that the server accepted.
            weight: The weight of the update.
        """
        where = self._coordinates_of(fragment)
        piece = self._pushed.pop(task)[push]
        self._closed.append(task)
        if self._adds_deltas:
            add_delta(self.params, where, weight, piece, None, self._common[fragment], self._shared_weight)
        else:
            blend_weights(self.params, where, piece, weight)

    def forget_task(self, task: int) -> None:
        """Discard all pieces that a worker pushed (sent) for a failed task."""
        self._pushed.pop(task, None)
        self._closed.append(task)

    def average(self) -> None:
        """Start a running mean of all later versions of the coordinates."""
        self._mean = self.params.copy()

    def follow(self, share: float) -> None:
        """Update the mean: mean <- mean + share * (theta - mean). theta are the coordinates."""
        assert self._mean is not None
        update_mean(self._mean, self.params, share)

    def mean(self) -> Vector:
        """Return the running mean [d_s]."""
        assert self._mean is not None
        return self._mean

    def load_mean(self, mean: Vector) -> None:
        """Set the running mean [d_s]."""
        self._mean = np.array(mean)

    def load(self, params: Vector, pulls: int, pushes: int) -> None:
        """Restore a checkpoint. No task is in flight afterwards.

        Args:
            params: The parameters [d_s].
            pulls: How often workers have fetched a piece so far.
            pushes: How often workers have sent a piece so far.
        """
        self.params = np.array(params)
        self.pulls = pulls
        self.pushes = pushes
        self._pushed.clear()
        self._closed.clear()

    def _coordinates_of(self, fragment: int) -> CoordinateSet:
        where = self._where[fragment]
        assert where is not None, "this shard holds no piece of the fragment"
        return where
