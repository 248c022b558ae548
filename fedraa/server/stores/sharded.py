"""Fragments spread over several servers: which coordinates are where, and what each server does with its own."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from fedraa.messages import Index, Receipt, Vector
from fedraa.server.mixing import add, blend
from fedraa.server.running_mean import follow
from fedraa.server.update_checks import receipt_of
from fedraa.vectors.index_runs import CoordinateSet, common_places, in_runs, index_of


@dataclass(frozen=True, eq=False)
class Piece:
    """What of a fragment is on a shard: `place` in the fragment's buffer [k], `where` in what the shard owns.

    `common` are the places in the piece of what all fragments hold.
    """

    shard: int
    place: Index
    where: Index
    common: Index


@dataclass(frozen=True, eq=False)
class Split:
    """A model spread over shards: `own` are each one's coordinates, ascending; `pieces` those of each fragment.

    A coordinate is on shard (first fragment that contains it) % shards: what all fragments share is on shard 0, and a
    fragment is in its own shard and there. Coordinates in no fragment, which nobody trains, are on none.
    """

    own: tuple[Index, ...]
    pieces: tuple[tuple[Piece, ...], ...]

    @classmethod
    def of(cls, indices: Sequence[Index], size: int, shards: int) -> "Split":
        """Of a model of `size` coordinates, of which fragment j has `indices[j]` [k]."""
        home = np.full(size, -1)
        for j, index in reversed(list(enumerate(indices))):
            home[index] = j % shards
        own = tuple(np.flatnonzero(home == shard) for shard in range(shards))
        pieces = []
        for index, common in zip(indices, common_places(indices, size), strict=True):
            places = [(shard, np.flatnonzero(home[index] == shard)) for shard in range(shards)]
            pieces.append(
                tuple(
                    Piece(shard, place, np.searchsorted(own[shard], index[place]), _found(common, place))
                    for shard, place in places
                    if len(place)
                )
            )
        return cls(own, tuple(pieces))


def _found(some: Index, places: Index) -> Index:
    """Where in `places` those of `some` are."""
    return np.flatnonzero(np.isin(places, some))


def assemble_pieces(places: Sequence[Index], pieces: Sequence[Vector]) -> Vector:
    """The buffer [k] of a fragment."""
    buffer = np.empty(sum(map(len, places)), np.float32)
    for place, piece in zip(places, pieces, strict=True):
        buffer[place] = piece
    return buffer


class Shard:
    """The server of a part of the coordinates: cuts pieces of fragments out of it, and mixes others in.

    `params` [d_s] are its coordinates, and `where[j]` are those of them that are in fragment j. A pushed update is kept
    until the server asks the shard to mix it in. With `is_delta_mix` the shard adds the delta, and coordinates at the
    places `common[j]` of its piece of fragment j get the share `shared_weight` of the weight. With `norms` it measures
    the delta.
    """

    def __init__(
        self,
        params: Vector,
        where: Sequence[Index | None],
        *,
        norms: bool,
        is_delta_mix: bool = False,
        common: Sequence[Index | None] = (),
        shared_weight: float = 1.0,
    ) -> None:
        self.params = np.array(params)
        self.pulls = self.pushes = 0
        self._where, self._norms, self._is_delta_mix = (
            [None if w is None else in_runs(w) for w in where],
            norms,
            is_delta_mix,
        )
        self._common, self._in_common = common or [None] * len(where), shared_weight
        self._pushed: dict[int, dict[str, Vector]] = {}
        self._mean: Vector | None = None

    def cut(self, fragment: int) -> Vector:
        """Its piece of the fragment as it stands, a copy."""
        return np.array(self.params[index_of(self._of(fragment))])

    def receive(self, task: int, push: str, sent: Vector, new: Vector) -> Receipt:
        """A piece that answers a task comes in; what is to be said of it. One that is wrong is not kept."""
        receipt = receipt_of(sent, new, push, norms=self._norms)
        if receipt.wrong is None and not receipt.bad:
            self.pushes += 1
            self._pushed.setdefault(task, {})[push] = new - sent if self._is_delta_mix else new
        return receipt

    def mix(self, fragment: int, task: int, push: str, weight: float) -> None:
        """Takes in what was pushed under that name for the task, and forgets what else was."""
        where, came = self._of(fragment), self._pushed.pop(task)[push]
        if self._is_delta_mix:
            add(self.params, where, weight, came, None, self._common[fragment], self._in_common)
        else:
            blend(self.params, where, came, weight)

    def forget(self, task: int) -> None:
        """The task has no answer: what was pushed for it goes."""
        self._pushed.pop(task, None)

    def average(self) -> None:
        """Keeps a mean over its versions from now on."""
        self._mean = self.params.copy()

    def follow(self, share: float) -> None:
        """mean <- mean + share * (theta - mean)."""
        assert self._mean is not None
        follow(self._mean, self.params, share)

    def mean(self) -> Vector:
        """The mean of its coordinates."""
        assert self._mean is not None
        return self._mean

    def load_mean(self, mean: Vector) -> None:
        """Go on from this mean."""
        self._mean = np.array(mean)

    def load(self, params: Vector, pulls: int, pushes: int) -> None:
        """Go on from these, with no task out."""
        self.params, self.pulls, self.pushes = np.array(params), pulls, pushes
        self._pushed.clear()

    def _of(self, fragment: int) -> CoordinateSet:
        where = self._where[fragment]
        assert where is not None, "no piece of that fragment is here"
        return where
