"""Tasks, rounds and failures of a log, against values that are computed by hand."""

import json
from math import isnan, nan
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from refusals import refuses

from fedraa.rundir.event_reader import read_events
from fedraa.rundir.file_names import EVENTS
from fedraa.rundir.run_stats import WRONG_VALUES
from fedraa.rundir.task_timeline import MAX_FAILURES, Fate, TaskTimeline, read_timeline


def dispatch(task: int, client: int, fragment: int, t: float, down: int = 10) -> dict[str, Any]:
    event = {"kind": "dispatch", "t": t, "wall": t, "task": task, "client": client, "fragment": fragment}
    return event | {"bytes_down": down, "cost": 1.5}


def commit(task: int, t: float, staleness: int = 0, up: int = 5) -> dict[str, Any]:
    return {"kind": "commit", "t": t, "wall": t, "task": task, "staleness": staleness, "bytes_up": up}


# Task 1 is applied before task 0, task 2 is dropped, and task 3 is in flight.
LOG = [
    dispatch(0, 0, 0, 0.0),
    dispatch(1, 1, 1, 0.0, down=20),
    commit(1, 1.0, staleness=3),
    dispatch(2, 1, 0, 1.0),
    commit(0, 2.0, staleness=1, up=6),
    {"kind": "fault", "t": 2.5, "wall": 2.5, "task": 2, "worker": 1, "error": "died", "action": "retry"},
    {"kind": "drop", "t": 3.0, "wall": 3.0, "task": 2, "client": 1, "error": "nan", "action": "retry"},
    dispatch(3, 1, 1, 3.0),
    {
        "kind": "round",
        "t": 4.0,
        "wall": 4.0,
        "round": 0,
        "coverage_min": 1,
        "coverage_max": 2,
        "uncovered": 7,
        "drift": 0.5,
    },
]


def timeline_of(events: list[dict[str, Any]]) -> TaskTimeline:
    timeline = TaskTimeline()
    for event in events:
        timeline.add(event)
    return timeline


def fields(timeline: TaskTimeline) -> str:
    return repr(vars(timeline))


def test_tasks_are_in_the_order_of_the_commits_and_then_of_dispatch() -> None:
    tasks = timeline_of(LOG).tasks()
    assert tasks["task"].tolist() == [1, 0, 2, 3]
    assert tasks["client"].tolist() == [1, 0, 1, 1]
    assert tasks["fragment"].tolist() == [1, 0, 0, 1]
    assert tasks["start"].tolist() == [0, 0, 1, 3]
    assert tasks["end"].tolist()[:3] == [1, 2, 3]
    assert isnan(tasks["end"].iloc[3])
    assert tasks["cost"].tolist() == [1.5] * 4
    assert tasks["bytes_down"].tolist() == [20, 10, 10, 10]
    assert tasks["bytes_up"].tolist() == [5, 6, 0, 0]
    assert tasks["staleness"].tolist() == [3, 1, 0, 0]
    assert tasks["done"].tolist() == [True, True, False, False]


def test_tasks_and_rounds_of_an_empty_log_have_their_columns() -> None:
    timeline = TaskTimeline()
    assert timeline.tasks().empty
    assert "done" in timeline.tasks()
    assert timeline.rounds().empty
    assert "uncovered" in timeline.rounds()
    assert timeline.bytes_until(np.array([0.0, 1.0])).tolist() == [0, 0]


def test_rounds_have_the_fields_of_their_events() -> None:
    (row,) = timeline_of(LOG).rounds().to_dict("records")
    assert (row["round"], row["coverage_min"], row["coverage_max"], row["uncovered"], row["drift"]) == (0, 1, 2, 7, 0.5)


def test_idle_share_is_the_time_without_a_task() -> None:
    # Until 4: client 0 works for 2 of 4; client 1 for 1, 2 (until the drop) and 1 (in flight).
    assert timeline_of(LOG).idle_fraction(2) == pytest.approx(1 - (2 + 4) / 8)
    assert TaskTimeline().idle_fraction(2) is None


def test_bytes_until_a_time_sum_the_committed_tasks() -> None:
    times = np.array([0.5, 1.0, 1.5, 2.0, 9.0])
    assert timeline_of(LOG).bytes_until(times).tolist() == [0, 25, 25, 41, 41]


def test_failures_are_limited_to_the_newest() -> None:
    timeline = timeline_of(LOG)
    assert [(failure["kind"], failure["error"], failure["worker"]) for failure in timeline.failures] == [
        ("fault", "died", "1"),
        ("drop", "nan", None),
    ]
    assert timeline.in_flight == 1
    assert timeline.fate.tolist() == [Fate.DONE, Fate.DONE, Fate.DROPPED, Fate.RUNNING]
    for number in range(MAX_FAILURES):
        timeline.add({"kind": "fault", "t": 5.0, "wall": 5.0, "error": str(number)})
    assert len(timeline.failures) == MAX_FAILURES
    assert timeline.failures[0]["error"] == "0"


@pytest.mark.parametrize("value", [None, "x", -1, 10**400, [], {}, nan])
def test_event_with_a_wrong_value_does_not_change_the_timeline(value: object) -> None:
    for place, event in enumerate(LOG):
        for name in event:
            timeline = timeline_of(LOG[:place])
            before = fields(timeline)
            try:
                timeline.add({**event, name: value})
            except WRONG_VALUES:
                assert fields(timeline) == before


def test_tasks_of_a_run_equal_the_tasks_of_its_log(sample_runs: Path) -> None:
    directory = sample_runs / "fed-raa-ended"
    events = list(read_events(directory))
    tasks = read_timeline(directory).tasks()
    sent = {event["task"]: event for event in events if event["kind"] == "dispatch"}
    commits = [event for event in events if event["kind"] == "commit"]
    done = tasks[tasks["done"]]
    assert done["task"].tolist() == [event["task"] for event in commits]
    assert done["end"].tolist() == [event["t"] for event in commits]
    assert done["start"].tolist() == [sent[event["task"]]["t"] for event in commits]
    assert len(tasks) == len(sent)


def test_read_timeline_names_the_line_of_a_task_that_was_never_sent(tmp_path: Path) -> None:
    lines = [json.dumps({"seq": number, **event}) for number, event in enumerate([LOG[0], commit(9, 1.0)])]
    (tmp_path / EVENTS).write_text("\n".join(lines) + "\n")
    with refuses("events", "line 2"):
        read_timeline(tmp_path)
