"""The JSON answers to requests of the board's page: list of runs, curves, comparison, and details."""

from collections.abc import Callable, Mapping, Sequence
from math import inf
from typing import Any

from fedraa.board.board import Board
from fedraa.board.curves import make_curves
from fedraa.board.details import make_details
from fedraa.board.rows import compare_flags, make_row
from fedraa.board.watched_run import WatchedRun

Query = Mapping[str, Sequence[str]]


def list_runs(board: Board, query: Query) -> dict[str, Any]:
    """Return the names of all runs, and the rows of runs that changed after the version `since`."""
    # The version is read before the runs. If a run changes in between, the next request returns its row again.
    version = board.version
    since = int(_query_value(query, "since", "0"))
    watched = board.runs
    read, size = board.log_bytes
    return {
        "version": version,
        "folder": str(board.folder),
        "searched": board.searched,
        "ids": list(watched),
        "rows": [make_row(run) for run in watched.values() if run.version > since],
        "read": read,
        "size": size,
    }


def curves_of(board: Board, query: Query) -> dict[str, Any]:
    """Return the curves of the requested runs: metric `y` over axis `x`, limited by `from` and `to`."""
    return {
        "curves": make_curves(
            _requested_runs(board, query),
            _query_value(query, "x", "t"),
            _query_value(query, "y", ""),
            *_query_range(query),
        )
    }


def comparison_of(board: Board, query: Query) -> dict[str, Any]:
    """Return the options in which the requested runs differ, and the command that repeats each run."""
    return compare_flags(_requested_runs(board, query))


def details_of(board: Board, query: Query) -> dict[str, Any] | None:
    """Return the details of the requested run; None if the run no longer exists."""
    chosen = _requested_runs(board, query)
    if not chosen:
        return None
    return make_details(chosen[0], *_query_range(query))


ANSWERS: dict[str, Callable[[Board, Query], dict[str, Any] | None]] = {
    "runs": list_runs,
    "curves": curves_of,
    "comparison": comparison_of,
    "details": details_of,
}


def _requested_runs(board: Board, query: Query) -> list[WatchedRun]:
    """Return the watched runs that the request names.

    Names are looked up and never used as paths, so that a request cannot read other files.
    """
    watched = board.runs
    return [watched[name] for name in query.get("run", ()) if name in watched]


def _query_range(query: Query) -> tuple[float, float]:
    """Return the requested start and end of the horizontal axis. A missing limit is infinite."""
    return float(_query_value(query, "from", str(-inf))), float(_query_value(query, "to", str(inf)))


def _query_value(query: Query, name: str, default: str) -> str:
    return query.get(name, [default])[0]
