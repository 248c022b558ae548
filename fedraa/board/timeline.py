"""The data for the timeline of a run's tasks.

If there are too many tasks, the timeline shows the fraction of time in which each client worked.
"""

from typing import Any

import numpy as np

from fedraa.board.sampling import json_number, json_numbers
from fedraa.messages import Floats
from fedraa.rundir.task_timeline import TaskTimeline

# The word on the page for each value of the enumeration `Fate`.
WORDS = np.array(["running", "done", "dropped", "lost"])
# The timeline shows at most this number of tasks as separate bars.
BARS = 1200
# The number of time bins of the timeline if there are more than BARS tasks.
BINS = 240


def make_timeline(log: TaskTimeline, clients: int, low: float, high: float) -> dict[str, Any]:
    """Return the tasks between the times `low` and `high`. If there are many clients, return only the tasks of some.

    `bars` has the client, fragment, start, end, staleness and fate of every task. If there are more than `BARS` tasks,
    the result has `busy` [clients, bins] in place of `bars`. An entry of `busy` is the fraction of a time bin in which
    a client worked.

    Args:
        log: The tasks of the run.
        clients: The number of clients of the run.
        low: The start of the timeline, on the run's clock.
        high: The end of the timeline, on the run's clock.
    """
    from fedraa.board.of_reports import select_clients

    low, high = max(0.0, low), min(log.t, high)
    shown = select_clients(clients)
    start, end = np.array(log.start), np.array(log.end)
    client, fate = np.array(log.client), np.array(log.fate)
    end = np.where(np.isnan(end), log.t, end)
    seen = np.flatnonzero((start < high) & (end > low) & np.isin(client, shown))
    window = {
        "clients": shown.tolist(),
        "of": clients,
        "from": json_number(low),
        "to": json_number(high),
        "tasks": len(seen),
    }
    if len(seen) > BARS:
        lane = np.searchsorted(shown, client[seen])
        edges = np.linspace(low, high, BINS + 1)
        busy = [busy_shares(start[seen][lane == i], end[seen][lane == i], edges) for i in range(len(shown))]
        return window | {"edges": json_numbers(edges), "busy": [json_numbers(shares.round(3)) for shares in busy]}
    return window | {
        "bars": {
            "client": client[seen].tolist(),
            "fragment": np.array(log.fragment)[seen].tolist(),
            "start": json_numbers(start[seen]),
            "end": json_numbers(end[seen]),
            "staleness": np.array(log.staleness)[seen].tolist(),
            "fate": WORDS[fate[seen]].tolist(),
        }
    }


def busy_shares(start: Floats, end: Floats, edges: Floats) -> Floats:
    """Return the fraction of each time bin in which one client worked.

    Args:
        start: The start of each task of the client.
        end: The end of each task of the client.
        edges: The ascending edges of the time bins, one more than there are bins.
    """
    busy = _time_since(np.sort(start), edges) - _time_since(np.sort(end), edges)
    shares: Floats = np.clip(np.diff(busy) / np.diff(edges), 0, 1)
    return shares


def _time_since(moments: Floats, edges: Floats) -> Floats:
    """Return, for each edge, the sum of (edge - moment) over the ascending `moments` before the edge."""
    count = np.searchsorted(moments, edges)
    sums = np.concatenate(([0.0], np.cumsum(moments)))
    return np.asarray(count * edges - sums[count])
