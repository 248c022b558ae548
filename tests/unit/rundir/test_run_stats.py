"""The totals of a log, against values that are computed by hand."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from refusals import refuses

from fedraa.rundir.event_reader import read_events
from fedraa.rundir.file_names import EVENTS
from fedraa.rundir.run_stats import WRONG_VALUES, RunStats, read_stats

# Two tasks are sent, one update is applied, one task is dropped; a worker fails, a round ends, and the run ends.
EVENTS_OF_A_RUN: list[dict[str, Any]] = [
    {"kind": "dispatch", "t": 0.0, "wall": 0.1, "task": 0, "client": 0, "step": 0, "bytes_down": 100},
    {"kind": "dispatch", "t": 0.0, "wall": 0.2, "task": 1, "client": 1, "step": 0, "bytes_down": 30},
    {"kind": "fault", "t": 0.5, "wall": 0.3, "task": 0, "worker": 0, "error": "died", "action": "retry"},
    {"kind": "commit", "t": 2.0, "wall": 0.4, "task": 0, "step": 1, "bytes_up": 50, "staleness": 2, "flops": 0.1},
    {"kind": "dispatch", "t": 2.0, "wall": 0.5, "task": 2, "client": 0, "step": 1, "bytes_down": 7},
    {"kind": "commit", "t": 3.0, "wall": 0.6, "task": 2, "step": 2, "bytes_up": 8, "staleness": 5, "flops": 0.2},
    {"kind": "drop", "t": 3.5, "wall": 0.7, "task": 1, "client": 1, "error": "nan", "action": "quarantined"},
    {"kind": "round", "t": 3.5, "wall": 0.8, "step": 3, "round": 0},
    {"kind": "end", "t": 4.0, "wall": 0.9, "step": 3, "reason": "steps", "model_sha256": "ab"},
]


def stats_of(events: list[dict[str, Any]]) -> RunStats:
    stats = RunStats()
    for event in events:
        stats.add(event)
    return stats


def fields(stats: RunStats) -> dict[str, Any]:
    return vars(stats) | {"failures": stats.failures.summary_entries()}


def test_run_stats_of_a_log_are_its_totals() -> None:
    stats = stats_of(EVENTS_OF_A_RUN)
    assert (stats.events, stats.step, stats.t, stats.wall) == (9, 3, 4.0, 0.9)
    assert (stats.committed, stats.failures.tasks, stats.faults, stats.rounds) == (2, 1, 1, 1)
    assert (stats.bytes_down, stats.bytes_up) == (137, 58)
    # The sum has the order of the log.
    assert stats.flops == 0.1 + 0.2
    assert (stats.staleness_sum, stats.staleness_max) == (7, 5)
    assert stats.failures.quarantined == [{"client": 1, "reason": "nan", "time": 3.5}]
    assert stats.end == EVENTS_OF_A_RUN[-1]


def test_late_evaluation_does_not_move_the_step_and_the_time_back() -> None:
    late = {"kind": "eval", "t": 1.0, "wall": 0.85, "step": 1, "accuracy": 0.5}
    stats = stats_of([*EVENTS_OF_A_RUN[:-1], late])
    assert (stats.step, stats.t, stats.wall) == (3, 3.5, 0.85)


def test_run_stats_equal_the_summary_of_the_run(sample_runs: Path) -> None:
    directory = sample_runs / "fed-raa-ended"
    stats, summary = read_stats(directory), json.loads((directory / "summary.json").read_text())
    assert stats.events == len(list(read_events(directory)))
    assert (stats.step, stats.committed, stats.faults) == (summary["steps"], summary["tasks"], summary["faults"])
    assert (stats.bytes_down, stats.bytes_up) == (summary["bytes_down"], summary["bytes_up"])
    assert (stats.flops, stats.staleness_max) == (summary["flops"], summary["staleness_max"])
    assert stats.staleness_sum / stats.committed == summary["staleness_mean"]


@pytest.mark.parametrize("event", EVENTS_OF_A_RUN, ids=lambda event: f"{event['kind']}-{event['t']}")
@pytest.mark.parametrize("value", [None, "x", -1, 1.5, 10**400, [], {}])
def test_event_with_a_wrong_value_does_not_change_run_stats(event: Mapping[str, Any], value: object) -> None:
    for name in event:
        stats = stats_of(EVENTS_OF_A_RUN)
        before = fields(stats)
        try:
            stats.add({**event, name: value})
        except WRONG_VALUES:
            assert fields(stats) == before


def test_read_stats_names_the_invalid_line(tmp_path: Path) -> None:
    lines = [json.dumps({"seq": number, **event}) for number, event in enumerate(EVENTS_OF_A_RUN)]
    (tmp_path / EVENTS).write_text("\n".join(lines).replace('"staleness": 2', '"staleness": -2') + "\n")
    with refuses("events", "line 4", str(tmp_path / EVENTS)):
        read_stats(tmp_path)
