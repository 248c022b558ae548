"""The offline optimal assignment of fragments to clients, and the delay bound that follows from it.

Source: Fed-RAA, Theorem 2. This module gives the n-th client (from 1) the fragment ceil(nM/N), as the proof does. The
sets in the theorem's text, {(j-1)floor(N/M)+1, ...}, leave out clients if M does not divide N.
"""

import numpy as np

from schedulers.protocol import Costs, Ints


def offline_sets(costs: Costs) -> list[Ints]:
    """Return the fragments that each client owns under the offline assignment.

    Clients are sorted from fast to slow, fragments from large to small. The n-th client (from 1) takes fragment
    ceil(nM/N). With fewer clients than fragments, it also owns the fragments after the last one of its predecessor, so
    that every fragment has a client.

    Args:
        costs: The costs c[n, j] [N, M], clients by fragments.
    """
    fast_first, large_first, starts, ends = _sort_by_cost(costs)
    sets: list[Ints] = [np.empty(0, np.int64)] * len(costs)
    for client, start, end in zip(fast_first.tolist(), starts.tolist(), ends.tolist(), strict=True):
        sets[client] = large_first[start:end]
    return sets


def delay_bound(costs: Costs) -> float:
    """Return K* = max over clients n of c[n, ceil(nM/N)], the longest task of the offline assignment.

    With this bound every client has a feasible fragment, and every fragment a client, if all devices can hold all
    fragments. A cost is infinite if the device cannot hold the fragment. If a client owns such a fragment, its cheapest
    fragment counts instead, so some fragment may have no client.
    """
    fast_first, large_first, starts, ends = _sort_by_cost(costs)
    place = np.arange(costs.shape[1])
    owned = (place >= starts[:, None]) & (place < ends[:, None])
    longest = costs[fast_first[:, None], large_first].max(axis=1, where=owned, initial=-np.inf)
    return float(np.where(np.isfinite(longest), longest, costs.min(axis=1)[fast_first]).max())


def _sort_by_cost(costs: Costs) -> tuple[Ints, Ints, Ints, Ints]:
    """Return clients and fragments sorted by cost, and the start and end of each client's range of fragments.

    Clients are sorted from fast to slow, fragments from large to small.
    """
    clients, fragments = costs.shape
    # A cost is infinite if the device lacks the memory. Such a pair of client and fragment counts as the slowest.
    finite = np.where(np.isfinite(costs), costs, 2 * costs.max(where=np.isfinite(costs), initial=0.0))
    fast_first = np.argsort(finite.sum(axis=1), kind="stable")
    large_first = np.argsort(-finite.sum(axis=0), kind="stable")
    ends = -(-np.arange(1, clients + 1) * fragments // clients)
    starts = np.minimum(np.concatenate(([0], ends[:-1])), ends - 1)
    return fast_first, large_first, starts, ends
