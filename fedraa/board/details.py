"""What one run's figures show, besides its curves."""

from typing import Any

import numpy as np
import numpy.typing as npt

from fedraa.board.sampling import number, plain
from fedraa.board.timeline import timeline
from fedraa.board.watched_run import WatchedRun
from fedraa.rundir.task_timeline import ROUND_COLUMNS, Fate, TaskTimeline

COLUMNS = 60  # most fragments, or groups of them, that a figure tells apart
ROUNDS = 300  # most rounds, or groups of them
SHOWN = 50  # newest faults

Whole = npt.NDArray[np.int64]


def details(run: WatchedRun, low: float, high: float) -> dict[str, Any]:
    """Timeline from `low` to `high`, staleness, updates of fragments, coverage, faults; without configuration none."""
    with run.lock:
        told = {"id": run.name, "version": run.version, "state": run.state, "said": run.said}
        if run.about is None:
            return told
        log, clients = run.timeline, run.about.clients
        return told | {
            "timeline": timeline(log, clients, low, high),
            "staleness": staleness(log),
            "fragments": fragments(log, clients),
            "coverage": coverage(log, run.about.parameters),
            "troubles": failures(log),
            "faults": run.stats.faults,
            "drops": run.stats.dropped,
        }


def failures(log: TaskTimeline) -> list[dict[str, Any]]:
    """Return the newest faults and drops, the newest first."""
    newest = list(log.failures)[: -SHOWN - 1 : -1]
    return [{**failure, "t": number(failure["t"]), "wall": number(failure["wall"])} for failure in newest]


def staleness(log: TaskTimeline) -> dict[str, Any] | None:
    """Commits by staleness, `width` whole numbers to a bar; None for a run of rounds, or before the first commit."""
    from fedraa.board.of_reports import BARS

    values = np.array(log.staleness)[np.array(log.fate) == Fate.DONE]
    if log.round_events or not len(values):
        return None
    width = -(-(int(values.max()) + 1) // BARS)
    counts = np.bincount(values // width)
    return {"width": width, "counts": counts.tolist(), "mean": number(values.mean()), "max": int(values.max())}


def fragments(log: TaskTimeline, clients: int) -> dict[str, Any] | None:
    """How often each fragment was committed, and by each of the clients of a timeline; None where there is but one."""
    from fedraa.board.of_reports import lanes

    done = np.array(log.fate) == Fate.DONE
    fragment, client = np.array(log.fragment)[done], np.array(log.client)[done]
    names, which = np.unique(fragment, return_inverse=True)
    if len(names) < 2:
        return None
    width = -(-len(names) // COLUMNS)
    which, shown = which // width, lanes(clients)
    by = np.zeros((len(shown), int(which.max()) + 1), np.int64)
    of_shown = np.isin(client, shown)
    np.add.at(by, (np.searchsorted(shown, client[of_shown]), which[of_shown]), 1)
    groups = [names[first : first + width] for first in range(0, len(names), width)]
    return {
        "names": [str(each[0]) if len(each) == 1 else f"{each[0]}–{each[-1]}" for each in groups],
        "counts": np.bincount(which).tolist(),
        "clients": shown.tolist(),
        "of": clients,
        "by_client": by.tolist(),
    }


def coverage(log: TaskTimeline, parameters: int) -> dict[str, Any] | None:
    """Clients per parameter, least and most, and the share of parameters that nobody trained; None without rounds.

    Of several rounds to a point: the least, the most, and the mean share.
    """
    rounds = len(log.round_events)
    if not rounds:
        return None
    starts: Whole = np.arange(0, rounds, -(-rounds // ROUNDS))
    sizes = np.diff([*starts, rounds])
    columns = {name: np.array([event[name] for event in log.round_events]) for name in ROUND_COLUMNS}
    return {
        "round": columns["round"][starts].tolist(),
        "least": np.minimum.reduceat(columns["coverage_min"], starts).tolist(),
        "most": np.maximum.reduceat(columns["coverage_max"], starts).tolist(),
        "uncovered": plain(np.add.reduceat(columns["uncovered"], starts) / sizes / parameters),
    }
