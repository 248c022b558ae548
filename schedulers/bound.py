"""The offline optimal assignment of fragments to clients, and the delay bound that follows from it.

Source: Fed-RAA, Theorem 2. The paper's sets {(j-1)floor(N/M)+1, ...} drop clients when M does not divide N;
its proof uses ceil(nM/N), which is what is done here.
"""

import numpy as np

from schedulers.protocol import Costs, Ints


def offline_sets(costs: Costs) -> list[Ints]:
    """The fragments that each client owns under the offline assignment.

    `costs` is c[n, j], clients by fragments. Clients sorted from fast to slow take fragments sorted from
    large to small: the n-th client (from 1) takes fragment ceil(nM/N). With fewer clients than fragments a
    client owns the run of fragments up to its own, so that none is left without a worker.
    """
    fast_first, large_first, starts, ends = _order(costs)
    sets: list[Ints] = [np.empty(0, np.int64)] * len(costs)
    for client, start, end in zip(fast_first.tolist(), starts.tolist(), ends.tolist(), strict=True):
        sets[client] = large_first[start:end]
    return sets


def delay_bound(costs: Costs) -> float:
    """K* = max over clients n of c[n, ceil(nM/N)]: the longest task of the offline assignment.

    Gre-RAA with this bound gives every client a feasible fragment and every fragment a worker. A cost may be
    infinite: the device cannot hold that fragment; its owner then counts with its cheapest one instead.
    """
    fast_first, large_first, starts, ends = _order(costs)
    place = np.arange(costs.shape[1])
    owned = (place >= starts[:, None]) & (place < ends[:, None])
    longest = costs[fast_first[:, None], large_first].max(axis=1, where=owned, initial=-np.inf)
    return float(np.where(np.isfinite(longest), longest, costs.min(axis=1)[fast_first]).max())


def _order(costs: Costs) -> tuple[Ints, Ints, Ints, Ints]:
    """Clients from fast to slow, fragments from large to small, and which run of the latter each client owns."""
    clients, fragments = costs.shape
    held = np.where(np.isfinite(costs), costs, 2 * costs.max(where=np.isfinite(costs), initial=0.0))
    fast_first = np.argsort(held.sum(axis=1), kind="stable")
    large_first = np.argsort(-held.sum(axis=0), kind="stable")
    ends = -(-np.arange(1, clients + 1) * fragments // clients)
    starts = np.minimum(np.concatenate(([0], ends[:-1])), ends - 1)
    return fast_first, large_first, starts, ends
