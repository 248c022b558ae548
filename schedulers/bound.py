"""The offline assignment of fragments to clients, and the delay bound that follows from it.

The assignment is fixed for the whole run. It minimizes the longest duration of a task.

Source: Fed-RAA, Theorem 2, with N clients and M fragments. The n-th fastest client (n from 1) gets the fragment
ceil(nM/N) in order of size, largest first, as in the theorem's proof. The formula in the theorem's text,
{(j-1)floor(N/M)+1, ...}, would give some clients no fragment if M does not divide N.
"""

import numpy as np

from schedulers.protocol import Costs, Ints


def offline_sets(costs: Costs) -> list[Ints]:
    """Return, for each client, the fragments that the offline assignment gives it.

    Clients are sorted from fast to slow, and fragments from large to small. The n-th client (from 1) gets the fragment
    ceil(nM/N). If there are fewer clients than fragments, this would leave out fragments between those of two
    successive clients. The later client of the two also gets these fragments.

    Args:
        costs: The cost of a task of client n on fragment j [N, M], in time units.
    """
    fast_first, large_first, starts, ends = _sort_by_cost(costs)
    sets: list[Ints] = [np.empty(0, np.int64)] * len(costs)
    for client, start, end in zip(fast_first.tolist(), starts.tolist(), ends.tolist(), strict=True):
        sets[client] = large_first[start:end]
    return sets


def delay_bound(costs: Costs) -> float:
    """Return K* = max over clients n of c[n, ceil(nM/N)], the longest task of the offline assignment.

    A fragment is feasible for a client if its cost is at most the delay bound. With the bound K*, every client has a
    feasible fragment, and every fragment is feasible for some client. The cost is infinite if a device lacks the memory
    for a fragment. If the offline assignment gives a client such a fragment, K* uses the cost of this client's cheapest
    fragment instead, and some fragment may be feasible for no client.

    Args:
        costs: The cost of a task of client n on fragment j [N, M], in time units.
    """
    fast_first, large_first, starts, ends = _sort_by_cost(costs)
    place = np.arange(costs.shape[1])
    owned = (place >= starts[:, None]) & (place < ends[:, None])
    longest = costs[fast_first[:, None], large_first].max(axis=1, where=owned, initial=-np.inf)
    return float(np.where(np.isfinite(longest), longest, costs.min(axis=1)[fast_first]).max())


def _sort_by_cost(costs: Costs) -> tuple[Ints, Ints, Ints, Ints]:
    """Return the clients from fast to slow [N], the fragments from large to small [M], and each client's range.

    The offline assignment gives the i-th of the sorted clients the sorted fragments from starts[i] to ends[i]
    (exclusive). The third and the fourth result are `starts` [N] and `ends` [N].
    """
    clients, fragments = costs.shape
    # The cost is infinite if the device lacks the memory for a fragment. For sorting, such a cost is replaced by twice
    # the largest finite cost.
    finite = np.where(np.isfinite(costs), costs, 2 * costs.max(where=np.isfinite(costs), initial=0.0))
    fast_first = np.argsort(finite.sum(axis=1), kind="stable")
    large_first = np.argsort(-finite.sum(axis=0), kind="stable")
    ends = -(-np.arange(1, clients + 1) * fragments // clients)
    starts = np.minimum(np.concatenate(([0], ends[:-1])), ends - 1)
    return fast_first, large_first, starts, ends
