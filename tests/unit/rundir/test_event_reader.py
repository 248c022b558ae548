"""The reader of a log: whole, with a last line that is being written, and damaged."""

import json
from pathlib import Path

import pytest
from refusals import refuses

from fedraa.rundir.event_reader import parse_event, parse_events, read_events
from fedraa.rundir.file_names import EVENTS

FIRST = {"seq": 0, "kind": "checkpoint", "t": 0.0, "wall": 0.5, "step": 0}
SECOND = {"seq": 1, "kind": "checkpoint", "t": 1.0, "wall": 0.75, "step": 3}


def write_log(directory: Path, text: str) -> None:
    (directory / EVENTS).write_text(text)


def test_read_events_of_a_whole_log_yields_every_line(tmp_path: Path) -> None:
    write_log(tmp_path, f"{json.dumps(FIRST)}\n{json.dumps(SECOND)}\n")
    assert list(read_events(tmp_path)) == [FIRST, SECOND]
    assert list(read_events(tmp_path, partial=True)) == [FIRST, SECOND]


@pytest.mark.parametrize("torn", ['{"seq":1,"ki', json.dumps(SECOND)])
def test_read_events_of_a_growing_log_omits_the_incomplete_line(torn: str, tmp_path: Path) -> None:
    write_log(tmp_path, f"{json.dumps(FIRST)}\n{torn}")
    assert list(read_events(tmp_path, partial=True)) == [FIRST]


@pytest.mark.parametrize("partial", [False, True])
def test_read_events_of_a_damaged_log_names_the_line(partial: bool, tmp_path: Path) -> None:
    write_log(tmp_path, f'{json.dumps(FIRST)}\n{{"seq":1\n{json.dumps(SECOND)}\n')
    events = read_events(tmp_path, partial=partial)
    assert next(events) == FIRST
    with refuses("events", "line 2", str(tmp_path / EVENTS)):
        next(events)


def test_read_events_of_a_torn_log_is_refused_if_it_must_be_whole(tmp_path: Path) -> None:
    write_log(tmp_path, f'{json.dumps(FIRST)}\n{{"seq":1')
    with refuses("events", "line 2"):
        list(read_events(tmp_path))


@pytest.mark.parametrize(
    "text",
    [
        "",
        "1",
        "[]",
        "[" * 100_000,
        b"\x00\xff",
        '{"seq":0,"kind":"eval","t":"soon","wall":0}',
        '{"seq":0,"kind":7,"t":0,"wall":0}',
        '{"seq":0,"kind":"eval","t":NaN,"wall":0}',
        '{"kind":"eval","t":0,"wall":0}',
    ],
)
def test_parse_event_of_another_text_is_none(text: str | bytes) -> None:
    assert parse_event(text) is None


def test_parse_events_stops_at_the_first_line_that_is_no_event() -> None:
    good = [json.dumps(FIRST), json.dumps(SECOND)]
    assert parse_events(good) == [FIRST, SECOND]
    assert parse_events([good[0], "{}", good[1]]) == [FIRST]
    assert parse_events([good[0], "{", good[1]]) == [FIRST]
    # Two values in one line are valid in a list, but they are no line of a log.
    assert parse_events([f"{good[0]},{good[1]}"]) == []
    assert parse_events([]) == []
