"""A run directory that the board watches. One thread reads its files. The threads of web requests use the result."""

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from threading import Lock
from typing import Any

from fedraa.board.about import About, read_about
from fedraa.board.evaluations import Evaluations
from fedraa.board.lines import GrowingLines
from fedraa.board.sampling import json_number
from fedraa.errors import InputError
from fedraa.reading.regular_files import read_regular_file
from fedraa.rundir.event_reader import Event, not_an_event_error, parse_events
from fedraa.rundir.failures import read_failure
from fedraa.rundir.file_names import CONFIG, EVALS, EVENTS, SUMMARY
from fedraa.rundir.run_lock import WRITER, is_written
from fedraa.rundir.run_stats import WRONG_VALUES, RunStats
from fedraa.rundir.task_timeline import TaskTimeline

# The inode, the size and the time of the last change of a file; None if the file does not exist.
Facts = tuple[int, int, int] | None


class WatchedRun:
    """The state of a run, from the parts of its files that were read so far.

    A thread must hold `lock` while it uses the state.

    Args:
        directory: The run directory.
        name: The name of the run on the board.
        next_version: Returns the next version of the board.

    Attributes:
        version: A number that grows with every change of the run.
        state: starting, running, interrupted, failed, ended or damaged.
        detail: The reason why the run ended or failed, or the damage of its files.
    """

    def __init__(self, directory: Path, name: str, next_version: Callable[[], int]) -> None:
        self.directory = directory
        self.name = name
        self.lock = Lock()
        self._next_version = next_version
        self._files: dict[str, Facts] = {}
        self._reset_state()

    def _reset_state(self) -> None:
        self.about: About | None = None
        self.evaluations: Evaluations | None = None
        self.stats = RunStats()
        self.timeline = TaskTimeline()
        self.log = GrowingLines(self.directory / EVENTS)
        self.state = "starting"
        self.detail = ""
        self.summary: dict[str, Any] = {}
        # The error about the first invalid line of the log; empty if there is none.
        self._wrong = ""
        self._files.pop(SUMMARY, None)
        self.version = self._next_version()

    @property
    def has_more(self) -> bool:
        """True if the log has more lines to read."""
        return self.about is not None and self.log.more

    def read_files(self) -> None:
        """Read the changes of the run's files, and update the fields of this object."""
        with self.lock:
            if self._file_has_changed(CONFIG):
                self._reset_state()
            try:
                self._read_changes()
            except ValueError as error:
                self._set_state("damaged", str(error))
            except OSError as error:
                self._set_state("damaged", f"run: {self.directory} cannot be read: {error.strerror or error}")

    def _read_changes(self) -> None:
        missing = [name for name in (CONFIG, EVENTS, EVALS) if not (self.directory / name).is_file()]
        if missing:
            if not (self.directory / WRITER).exists():
                raise InputError("run", f"{self.directory} is not a run directory; it has no {missing[0]}")
            self._set_state("starting", "")
            return
        if self.about is None or self.evaluations is None:
            self.about = read_about(self.directory)
            self.evaluations = Evaluations(self.directory / EVALS, self.about.metric_spec)
            self.version = self._next_version()
        if self.evaluations.follow():
            self.version = self._next_version()
        if self._wrong:
            self._set_state("damaged", self._wrong)
            return
        if self._file_has_changed(SUMMARY):
            self.summary = self._read_totals()
        if self.summary:
            self._set_state("ended", f"by {self.summary['reason']}")
        else:
            failure = read_failure(self.directory)
            if is_written(self.directory / EVENTS):
                self._set_state("running", "")
            elif failure:
                self._set_state("failed", failure)
            else:
                self._set_state("interrupted", "")

    def read_log(self) -> None:
        """Read the next part of the log. Mark the run as damaged if a line is not an event."""
        if self.about is None:
            return
        try:
            lines, is_restarted = self.log.read()
        except (OSError, ValueError) as error:
            with self.lock:
                self._mark_damaged(f"events: {error}")
            return
        if self._wrong and not is_restarted:
            return
        events = parse_events(lines)
        with self.lock:
            if is_restarted:
                self.stats = RunStats()
                self.timeline = TaskTimeline()
                self._wrong = ""
            if lines or is_restarted:
                self.version = self._next_version()
            count = self._add_events(events)
            if count < len(lines):
                number = self.log.number - len(lines) + count + 1
                self._mark_damaged(str(not_an_event_error(self.directory, number)))

    def _add_events(self, events: Sequence[Event]) -> int:
        """Add events to the statistics until one is invalid, and return the number of added events."""
        for count, event in enumerate(events):
            try:
                self.timeline.add(event)
                self.stats.add(event)
            except WRONG_VALUES:
                return count
        return len(events)

    def _mark_damaged(self, problem: str) -> None:
        self._wrong = problem
        self._set_state("damaged", problem)

    def _set_state(self, state: str, detail: str) -> None:
        if (state, detail) == (self.state, self.detail):
            return
        self.state = state
        self.detail = detail
        self.version = self._next_version()

    def _file_has_changed(self, name: str) -> bool:
        try:
            status = (self.directory / name).stat()
            facts: Facts = (status.st_ino, status.st_size, status.st_mtime_ns)
        except OSError:
            facts = None
        is_new = self._files.get(name) != facts
        self._files[name] = facts
        return is_new

    def _read_totals(self) -> dict[str, Any]:
        """Return the reason of the run's end and the time to the target, from summary.json.

        The result is empty for a run in progress.
        """
        path = self.directory / SUMMARY
        if not path.exists():
            return {}
        try:
            summary = json.loads(read_regular_file(path))
            reached = summary.get("time_to_target")
            if reached is not None:
                reached = json_number(float(reached))
            return {"reason": str(summary["reason"]), "time_to_target": reached}
        except (KeyError, TypeError, ValueError, OverflowError, AttributeError, RecursionError):
            # The next check reads the file again, because the user may repair it.
            del self._files[SUMMARY]
            raise InputError("run", f"{path} is not a summary of a run") from None
