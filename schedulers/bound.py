"""The offline assignment of fragments to clients, and the delay bound that follows from it.

The assignment is fixed for the whole run (Fed-RAA, Theorem 2, N clients, M fragments). The n-th fastest client gets the
fragment ceil(nM/N) in order of size, largest first, as in the theorem's proof. The formula in the theorem's text,
{(j-1)floor(N/M)+1, ...}, gives some clients no fragment if M does not divide N. The longest task of this assignment is
short, but not always the shortest possible: another number of clients per fragment may give a shorter one.
"""

import numpy as np

from schedulers.protocol import Costs, Ints


def offline_sets(costs: Costs) -> list[Ints]:
    """Return, for each client, the fragments that the offline assignment gives it.

    The n-th fastest client (from 1) gets the fragment ceil(nM/N), counted from the largest. With fewer clients than
    fragments, it gets all fragments from ceil((n-1)M/N) + 1 to ceil(nM/N).

    Args:
        costs: The cost of a task of client n on fragment j [N, M], in time units.
    """
    fast_first, large_first, starts, ends = _sort_by_cost(costs)
    sets: list[Ints] = [np.empty(0, np.int64)] * len(costs)
    for client, start, end in zip(fast_first.tolist(), starts.tolist(), ends.tolist(), strict=True):
        sets[client] = large_first[start:end]
    return sets


def delay_bound(costs: Costs) -> float:
    """Return the cost of the longest task in the offline assignment, K* = max over clients n of c[n, ceil(nM/N)].

    A fragment is feasible for a client if its cost is at most 1.01 times the delay bound. With K*, every client has a
    feasible fragment, and every fragment has a client. Fragments that do not fit into the memory of a device have
    infinite cost and do not count. If none of the fragments that are assigned to a client fits, its cheapest fragment
    counts. A fragment may then have no client.

    Args:
        costs: The cost of a task of client n on fragment j [N, M], in time units.
    """
    fast_first, large_first, starts, ends = _sort_by_cost(costs)
    place = np.arange(costs.shape[1])
    owned = (place >= starts[:, None]) & (place < ends[:, None])
    sorted_costs = costs[fast_first[:, None], large_first]
    longest = sorted_costs.max(axis=1, where=owned & np.isfinite(sorted_costs), initial=-np.inf)
    return float(np.where(np.isfinite(longest), longest, costs.min(axis=1)[fast_first]).max())


def _sort_by_cost(costs: Costs) -> tuple[Ints, Ints, Ints, Ints]:
    """Return the clients from fast to slow, the fragments from large to small, and their assignment.

    The i-th of the sorted clients gets the sorted fragments from starts[i] to ends[i] (exclusive). The shapes are [N],
    [M], [N] and [N].
    """
    clients, fragments = costs.shape
    # Infinite costs are replaced, because they cannot be summed and sorted.
    finite = np.where(np.isfinite(costs), costs, 2 * costs.max(where=np.isfinite(costs), initial=0.0))
    fast_first = np.argsort(finite.sum(axis=1), kind="stable")
    large_first = np.argsort(-finite.sum(axis=0), kind="stable")
    ends = -(-np.arange(1, clients + 1) * fragments // clients)
    starts = np.minimum(np.concatenate(([0], ends[:-1])), ends - 1)
    return fast_first, large_first, starts, ends
