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
from fedraa.errors import InputError
from fedraa.reading import content
from fedraa.rundir.event_reader import Event, not_an_event, parse_events
from fedraa.rundir.file_names import CONFIG, EVALS, EVENTS, SUMMARY
from fedraa.rundir.run_lock import WRITER, is_written
from fedraa.rundir.run_stats import WRONG_VALUES, RunStats
from fedraa.rundir.task_timeline import TaskTimeline

Facts = tuple[int, int, int] | None


class WatchedRun:
    """What is known of a run by now; whoever reads it holds `lock`.

    `version` grows with every change. `state` is starting, running, interrupted, ended or damaged; `said` is what else
    there is to say of it, a sentence of what is damaged, or empty.
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
        self.stats = RunStats()
        self.timeline = TaskTimeline()
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
                raise InputError("run", f"{self.directory} is not a run directory; it has no {missing[0]}")
            self._set("starting", "")
            return
        if self.about is None or self.evaluations is None:
            self.about = about(self.directory)
            self.evaluations = Evaluations(self.directory / EVALS, self.about.figures)
            self.version = self._next_version()
        if self.evaluations.follow():
            self.version = self._next_version()
        if self._wrong:
            self._set("damaged", self._wrong)
            return
        if self._is_new(SUMMARY):
            self.summary = self._totals()
        if self.summary:
            self._set("ended", f"by {self.summary['reason']}")
        else:
            self._set("running" if is_written(self.directory / EVENTS) else "interrupted", "")

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
        events = [] if self._wrong and not anew else parse_events(lines)
        with self.lock:
            if anew:
                self.stats = RunStats()
                self.timeline = TaskTimeline()
                self._wrong = ""
            if lines or anew:
                self.version = self._next_version()
            taken = self._take(events)
            if taken < len(lines) and not self._wrong:
                number = self.log.number - len(lines) + taken + 1
                self._spoilt(str(not_an_event(self.directory, number)))

    def _take(self, events: Sequence[Event]) -> int:
        """Add the events up to the first that no run writes; return the number of those before it."""
        for count, event in enumerate(events):
            try:
                self.timeline.add(event)
                self.stats.add(event)
            except WRONG_VALUES:
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
            raise InputError("run", f"{path} is not a summary of a run") from None
