"""Read the events in one line of a log, or in the whole log of a run."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NoReturn

from fedraa.errors import InputError
from fedraa.reading.regular_files import open_regular_file
from fedraa.rundir.file_names import EVENTS

Event = dict[str, Any]


def parse_event(text: str | bytes) -> Event | None:
    """Return the event in a line of a log; None if the line is not an event."""
    event = parse_object(text)
    if not _is_event(event):
        return None
    return event


def parse_object(text: str | bytes) -> Event | None:
    """Return the JSON object in a line of a log; None if the line is not an object."""
    if isinstance(text, bytes):
        text = text.decode(errors="replace")
    try:
        value = _DECODER.decode(text)
    except (ValueError, RecursionError):
        return None
    if not isinstance(value, dict):
        return None
    return value


def parse_events(lines: list[str]) -> list[Event]:
    """Return the events before the first line that is not an event."""
    try:
        # Parsing all lines in one call takes half the time of one call per line.
        events = _DECODER.decode(f"[{','.join(lines)}]")
    except (ValueError, RecursionError):
        events = []
    if len(events) == len(lines) and all(map(_is_event, events)):
        return list(events)
    parsed: list[Event] = []
    for line in lines:
        event = parse_event(line)
        if event is None:
            break
        parsed.append(event)
    return parsed


def read_events(directory: Path, *, partial: bool = False) -> Iterator[Event]:
    """Yield the events of a run one by one, without the whole log in memory.

    If `partial` is True, an incomplete last line is skipped. Raises InputError for the first line that is not an event.
    """
    with open_regular_file(directory / EVENTS) as stream:
        for number, text in enumerate(stream, 1):
            if partial and not text.endswith(b"\n"):
                return
            event = parse_event(text)
            if event is None:
                raise not_an_event_error(directory, number)
            yield event


def not_an_event_error(directory: Path, number: int) -> InputError:
    """Return the error about line `number` of a run's log, counted from 1."""
    return InputError("events", f"line {number} of {directory / EVENTS} is not an event")


def _is_event(value: object) -> bool:
    if not isinstance(value, dict) or not isinstance(value.get("kind"), str):
        return False
    return all(isinstance(value.get(name), int | float) for name in ("seq", "t", "wall"))


def _refuse_constant(constant: str) -> NoReturn:
    raise ValueError(f"{constant} is not JSON")


_DECODER = json.JSONDecoder(parse_constant=_refuse_constant)
