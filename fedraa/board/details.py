"""The data for the plots of one run, other than the curves of its metrics."""

from typing import Any

import numpy as np

from fedraa.board.sampling import json_number, json_numbers
from fedraa.board.timeline import make_timeline
from fedraa.board.watched_run import WatchedRun
from fedraa.messages import Index
from fedraa.rundir.task_timeline import ROUND_COLUMNS, Fate, TaskTimeline, staleness_histogram

# A plot has at most this number of columns. If there are more fragments, a column shows several neighbouring fragments.
MAX_COLUMNS = 60
# A plot has at most this number of points. If there are more rounds, a point shows a group of rounds.
MAX_ROUNDS = 300
# If there are more failures than this number, only the newest are shown.
MAX_SHOWN_FAILURES = 50


def make_details(run: WatchedRun, low: float, high: float) -> dict[str, Any]:
    """Return the data for the plots of a run: timeline, staleness, updates per fragment, coverage and failures.

    Before the run's config.json can be read, the result has only the name of the run.

    Args:
        run: The run.
        low: The start of the timeline, on the run's clock.
        high: The end of the timeline, on the run's clock.
    """
    with run.lock:
        if run.about is None:
            return {"id": run.name}
        log = run.timeline
        clients = run.about.clients
        return {
            "id": run.name,
            "timeline": make_timeline(log, clients, low, high),
            "staleness": count_staleness(log),
            "fragments": count_fragments(log, clients),
            "coverage": coverage_by_round(log, run.about.parameters),
            "troubles": newest_failures(log),
            "faults": run.stats.faults,
            "drops": run.stats.failures.tasks,
        }


def newest_failures(log: TaskTimeline) -> list[dict[str, Any]]:
    """Return the newest faults and dropped tasks of a run, the newest first."""
    newest = list(log.failures)[: -MAX_SHOWN_FAILURES - 1 : -1]
    return [{**failure, "t": json_number(failure["t"]), "wall": json_number(failure["wall"])} for failure in newest]


def count_staleness(log: TaskTimeline) -> dict[str, Any] | None:
    """Return a histogram of the staleness of accepted updates. Each bar counts `width` neighbouring values.

    Return None before the server accepts the first update, and for a synchronous run, which has no staleness.
    """
    values = np.array(log.staleness)[np.array(log.fate) == Fate.DONE]
    if log.round_events or not len(values):
        return None
    width, counts = staleness_histogram(values)
    return {"width": width, "counts": counts.tolist(), "mean": json_number(values.mean()), "max": int(values.max())}


def count_fragments(log: TaskTimeline, clients: int) -> dict[str, Any] | None:
    """Return how many updates of each fragment the server accepted, in total and by client.

    Return None for fewer than two fragments.
    """
    from fedraa.board.of_reports import select_clients

    done = np.array(log.fate) == Fate.DONE
    fragment, client = np.array(log.fragment)[done], np.array(log.client)[done]
    names, which = np.unique(fragment, return_inverse=True)
    if len(names) < 2:
        return None
    width = -(-len(names) // MAX_COLUMNS)
    which = which // width
    shown = select_clients(clients)
    by = np.zeros((len(shown), int(which.max()) + 1), np.int64)
    of_shown = np.isin(client, shown)
    np.add.at(by, (np.searchsorted(shown, client[of_shown]), which[of_shown]), 1)
    groups = [names[first : first + width] for first in range(0, len(names), width)]
    return {
        "names": ["–".join(map(str, dict.fromkeys([group[0], group[-1]]))) for group in groups],
        "counts": np.bincount(which).tolist(),
        "clients": shown.tolist(),
        "of": clients,
        "by_client": by.tolist(),
    }


def coverage_by_round(log: TaskTimeline, parameters: int) -> dict[str, Any] | None:
    """Return, by round, the smallest and largest number of clients that trained a parameter.

    `uncovered` is the fraction of parameters that no client trained. If there are too many rounds, a value describes a
    group of rounds: the smallest `least`, the largest `most` or the mean `uncovered`.

    Return None for a run without rounds.
    """
    rounds = len(log.round_events)
    if not rounds:
        return None
    starts: Index = np.arange(0, rounds, -(-rounds // MAX_ROUNDS))
    sizes = np.diff([*starts, rounds])
    columns = {name: np.array([event[name] for event in log.round_events]) for name in ROUND_COLUMNS}
    return {
        "round": columns["round"][starts].tolist(),
        "least": np.minimum.reduceat(columns["coverage_min"], starts).tolist(),
        "most": np.maximum.reduceat(columns["coverage_max"], starts).tolist(),
        "uncovered": json_numbers(np.add.reduceat(columns["uncovered"], starts) / sizes / parameters),
    }
