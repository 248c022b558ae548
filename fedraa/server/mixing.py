"""Mix a client's parameters or its delta into the model, in place. Server shards use these functions without torch."""

import numpy as np

from fedraa.messages import Index, Vector
from fedraa.vectors.chunked import accumulate, over, times
from fedraa.vectors.index_runs import Where, index_of, parts_of


def blend(params: Vector, where: Where, new: Vector, mix: float) -> None:
    """theta <- (1 - mix) theta + mix theta_new, in place on the coordinates `where`; element by element.

    However the coordinates are divided among calls, the bits are the same.
    """
    old, fresh = np.float32(1 - mix), np.float32(mix)

    def mixed(piece: slice) -> None:
        change = times(fresh, new[piece])
        for values, part in parts_of(params, where, piece):
            values *= old
            values += change[part].reshape(values.shape)

    over(len(new), mixed)


def add(
    params: Vector,
    where: Where,
    weight: float,
    new: Vector,
    sent: Vector | None = None,
    common: Index | None = None,
    in_common: float = 1.0,
) -> None:
    """theta <- theta + weight * (new - sent), in place on the coordinates `where`; element by element, as `blend`.

    At the places `common` of the buffers it is the share `in_common` of the weight.
    """
    if common is None or not len(common):
        accumulate(params, where, weight, new, sent)
        return
    held = index_of(where)
    held = common if isinstance(held, slice) else held[common]
    change = new[common] if sent is None else new[common] - sent[common]
    shared = params[held] + np.float32(weight * in_common) * change
    accumulate(params, where, weight, new, sent)
    params[held] = shared
