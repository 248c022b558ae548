"""What one run's figures show, besides its curves."""

from typing import Any

import numpy as np
import numpy.typing as npt

from fedraa.board.sampling import number, plain
from fedraa.board.tally import DONE, Tally
from fedraa.board.timeline import timeline
from fedraa.board.watched_run import WatchedRun

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
        tally, clients = run.tally, run.about.clients
        return told | {
            "timeline": timeline(tally, clients, low, high),
            "staleness": staleness(tally),
            "fragments": fragments(tally, clients),
            "coverage": coverage(tally, run.about.parameters),
            "troubles": list(tally.troubles)[: -SHOWN - 1 : -1],
            "faults": tally.faults,
            "drops": tally.drops,
        }


def staleness(tally: Tally) -> dict[str, Any] | None:
    """Commits by staleness, `width` whole numbers to a bar; None for a run of rounds, or before the first commit."""
    from fedraa.board.of_reports import BARS

    values = np.array(tally.staleness)[np.array(tally.fate) == DONE]
    if len(tally.round) or not len(values):
        return None
    width = -(-(int(values.max()) + 1) // BARS)
    counts = np.bincount(values // width)
    return {"width": width, "counts": counts.tolist(), "mean": number(values.mean()), "max": int(values.max())}


def fragments(tally: Tally, clients: int) -> dict[str, Any] | None:
    """How often each fragment was committed, and by each of the clients of a timeline; None where there is but one."""
    from fedraa.board.of_reports import lanes

    done = np.array(tally.fate) == DONE
    fragment, client = np.array(tally.fragment)[done], np.array(tally.client)[done]
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


def coverage(tally: Tally, parameters: int) -> dict[str, Any] | None:
    """Clients per parameter, least and most, and the share of parameters that nobody trained; None without rounds.

    Of several rounds to a point: the least, the most, and the mean share.
    """
    rounds = len(tally.round)
    if not rounds:
        return None
    starts: Whole = np.arange(0, rounds, -(-rounds // ROUNDS))
    sizes = np.diff([*starts, rounds])
    return {
        "round": np.array(tally.round)[starts].tolist(),
        "least": np.minimum.reduceat(np.array(tally.covered_min), starts).tolist(),
        "most": np.maximum.reduceat(np.array(tally.covered_max), starts).tolist(),
        "uncovered": plain(np.add.reduceat(np.array(tally.uncovered), starts) / sizes / parameters),
    }
