"""The board answers quickly with a hundred runs and a million events."""

from pathlib import Path

import pytest

from benchmarks.system.board import EVENTS_EACH, RUNS, measure_board


@pytest.mark.slow
@pytest.mark.alone
def test_board_with_a_million_events_answers_within_its_limits(tmp_path: Path) -> None:
    """The limits are many times the times on two idle cores, and far below the time to read all logs."""
    assert RUNS * EVENTS_EACH == 1_000_000
    results = measure_board(tmp_path, RUNS, EVENTS_EACH)
    assert results["until all runs and their last metrics"] < 30
    # The board still reads the logs at this time.
    assert results["curves of six runs"] < 5
    assert results["details of a run, the next"] < 2
    assert results["changes, without any"] < 0.5
    assert results["from a line to the board"] < 5
    assert results["memory of the board, MB"] < 1000


def test_a_board_with_two_runs_is_measured(tmp_path: Path) -> None:
    assert measure_board(tmp_path, runs=2, events=200)["logs, MB"] > 0
