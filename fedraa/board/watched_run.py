"""A run directory as it is watched: read on by a thread, looked at by others."""

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from threading import Lock
from typing import Any

from fedraa.board.about import About, about
from fedraa.board.evaluations import Evaluations
from fedraa.board.lines import GrowingLines
from fedraa.board.sampling import number
from fedraa.board.tally import Tally
from fedraa.reading import content
from fedraa.rundir.checked_files import is_event
from fedraa.rundir.failures import read_failure
from fedraa.rundir.file_names import CONFIG, EVALS, EVENTS, SUMMARY
from fedraa.rundir.run_lock import WRITER, is_written

Facts = tuple[int, int, int] | None


class WatchedRun:
    """What is known of a run by now; whoever reads it holds `lock`.

    `version` grows with every change. `state` is starting, running, interrupted, failed, ended or damaged. `said` adds
    to it: a sentence about what is damaged or why the run failed, what ended it, or nothing.
    """

    def __init__(self, directory: Path, name: str, next_version: Callable[[], int]) -> None:
        self.directory, self.name, self.lock = directory, name, Lock()
        self._next_version = next_version
        self._files: dict[str, Facts] = {}
        self._begin()

    def _begin(self) -> None:
        """Nothing is known yet."""
        self.about: About | None = None
        self.evaluations: Evaluations | None = None
        self.tally = Tally()
        self.log = GrowingLines(self.directory / EVENTS)
        self.state, self.said = "starting", ""
        self.summary: dict[str, Any] = {}
        self._wrong = ""  # with the log
        self._files.pop(SUMMARY, None)
        self.version = self._next_version()

    @property
    def more(self) -> bool:
        """Whether there is more of the log to read at once."""
        return self.about is not None and self.log.more

    def look(self) -> None:
        """See what has become of the run: configuration, evaluations, state."""
        with self.lock:
            if self._is_new(CONFIG):
                self._begin()
            try:
                self._look()
            except ValueError as error:
                self._set("damaged", str(error))
            except OSError as error:
                self._set("damaged", f"run: {self.directory} cannot be read: {error.strerror or error}")

    def _look(self) -> None:
        if missing := [name for name in (CONFIG, EVENTS, EVALS) if not (self.directory / name).is_file()]:
            if not (self.directory / WRITER).exists():
                raise ValueError(f"run: {self.directory} is not a run directory; it has no {missing[0]}")
            self._set("starting", "")
            return
        if self.about is None or self.evaluations is None:
            self.about = about(self.directory)
            self.evaluations = Evaluations(self.directory / EVALS, self.about.figures)
            self.version = self._next_version()
        if self.evaluations.follow():
            self.version = self._next_version()
        if self._wrong:
            raise ValueError(self._wrong)
        if self._is_new(SUMMARY):
            self.summary = self._totals()
        if self.summary:
            self._set("ended", f"by {self.summary['reason']}")
        else:
            failure = read_failure(self.directory)
            if is_written(self.directory / EVENTS):
                self._set("running", "")
            elif failure:
                self._set("failed", failure)
            else:
                self._set("interrupted", "")

    def read(self) -> None:
        """Take in the next part of the log. From a line on that is no event it is not counted, and that is said."""
        if self.about is None:
            return
        try:
            lines, anew = self.log.read()
        except (OSError, ValueError) as error:
            with self.lock:
                self._spoilt(f"events: {error}")
            return
        events = [] if self._wrong and not anew else parsed(lines)
        with self.lock:
            if anew:
                self.tally, self._wrong = Tally(), ""
            if lines or anew:
                self.version = self._next_version()
            taken = self._take(events)
            if taken < len(lines) and not self._wrong:
                number = self.log.number - len(lines) + taken + 1
                self._spoilt(f"events: line {number} of {self.directory / EVENTS} is not an event")

    def _take(self, events: Sequence[dict[str, Any]]) -> int:
        """How many of them are events of a run."""
        for count, event in enumerate(events):
            try:
                self.tally.add(event)
            except (KeyError, TypeError, OverflowError):
                return count
        return len(events)

    def _spoilt(self, why: str) -> None:
        self._wrong = why
        self._set("damaged", why)

    def _set(self, state: str, said: str) -> None:
        if (state, said) != (self.state, self.said):
            self.state, self.said, self.version = state, said, self._next_version()

    def _is_new(self, name: str) -> bool:
        """Whether this file is another one than when it was looked at last."""
        try:
            found = (self.directory / name).stat()
            facts: Facts = (found.st_ino, found.st_size, found.st_mtime_ns)
        except OSError:
            facts = None
        is_new = self._files.get(name) != facts
        self._files[name] = facts
        return is_new

    def _totals(self) -> dict[str, Any]:
        """Of a run that has ended; empty if it has not. ValueError for what are none."""
        path = self.directory / SUMMARY
        if not path.exists():
            return {}
        try:
            found = json.loads(content(path))
            reached = found.get("time_to_target")
            return {
                "reason": str(found["reason"]),
                "time_to_target": None if reached is None else number(float(reached)),
            }
        except (KeyError, TypeError, ValueError, OverflowError, AttributeError, RecursionError):
            del self._files[SUMMARY]  # it is still wrong the next time
            raise ValueError(f"run: {path} is no summary of a run") from None


def parsed(lines: Sequence[str]) -> list[dict[str, Any]]:
    """The events in these lines, up to the first that is none."""
    try:
        found = json.loads(f"[{','.join(lines)}]")  # at once, which is quicker
        if len(found) == len(lines) and all(map(is_event, found)):
            return list(found)
    except (ValueError, RecursionError):
        pass
    events = []
    for line in lines:
        try:
            event = json.loads(line)
        except (ValueError, RecursionError):
            break
        if not is_event(event):
            break
        events.append(event)
    return events
