"""An assertion that two runs are equal."""

from pathlib import Path

from benchmarks.system.chaos_kills import comparable_log
from fedraa.rundir.history import History


def same(directory: Path, undisturbed: History) -> None:
    """Assert equal events, apart from faults and real times, and the same final bits."""
    history = History(directory)
    assert comparable_log(history.lines()) == comparable_log(undisturbed.lines())
    assert history.summary["model_sha256"] == undisturbed.summary["model_sha256"]
