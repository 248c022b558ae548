"""Write the progress of a run to Python's logging.

There is a line for each evaluation, and a line with the current state after 30 s without a line. If the run is one of
several, there is a line only at its end and after 30 s without a line.
"""

import csv
import time
from collections.abc import Mapping
from contextlib import ExitStack
from pathlib import Path
from shlex import quote

from fedraa.callbacks.callback import Callback
from fedraa.callbacks.events import Event, Progress, RunStart
from fedraa.numbers import format_count
from fedraa.objectives.metric_spec import metric_heading
from fedraa.rundir.file_names import EVALS
from fedraa.rundir.history import title_of_method
from fedraa.waiting import Heartbeat, printed_log


class ProgressLog(Callback):
    """A callback that logs a run to the logger `fedraa` at the level INFO.

    If the user has not configured logging, the lines are printed. A resumed run does not log earlier evaluations again.

    Args:
        place: A prefix of every line, such as `run 1/4`, if the run is one of several; empty for a single run.
    """

    blocking = False

    def __init__(self, place: str = "") -> None:
        self._place = place
        self._prefix = ""
        if place:
            self._prefix = f"{place} | "
        self._began = time.monotonic()
        self._doing: str | None = "starting"
        self._run: RunStart | None = None
        self._progress: Progress | None = None
        self._logged_step = -1
        # The result of the last evaluation, for the line at the end of one of several runs.
        self._result = ""
        self._open: ExitStack | None = None
        self._heartbeat: Heartbeat | None = None

    def on_prepare(self, doing: str | None) -> None:
        self._doing = doing or "starting"
        if doing is not None:
            self._open_log()
        elif self._run is None:
            self.on_close()

    def on_start(self, run: RunStart) -> None:
        is_first = self._run is None
        self._run = run
        self._progress = None
        self._doing = "starting"
        self._open_log()
        if run.resumed:
            self._logged_step = max(self._logged_step, _last_step(run.directory))
        if is_first and not self._place:
            begins = "resumes" if run.resumed else "runs"
            dataset = run.experiment.dataset
            self._log_line(f"{title_of_method(run.experiment.method)} {begins} on {dataset} | writes {run.directory}")

    def on_eval(self, step: int, t: float, metrics: Mapping[str, float]) -> None:
        if step <= self._logged_step:
            return
        self._logged_step = step
        texts = _metric_texts(metrics, self._main_metric)
        if self._place:
            self._result = f" | {texts[0]}"
        else:
            self._log_line(" | ".join([self._steps_text(step), self._time_text(t), *texts]))

    def on_progress(self, progress: Progress) -> None:
        self._progress = progress
        self._doing = None

    def on_end(self, event: Event) -> None:
        assert self._run is not None
        steps = self._steps_text(int(str(event["step"])))
        time_text = self._time_text(float(str(event["t"])))
        self._log_line(f"ended by {event['reason']} | {steps} | {time_text}{self._result}")
        if not self._place:
            self._log_line(f"next: {next_commands(self._run.directory)}")

    def on_close(self) -> None:
        if self._open is not None:
            self._open.close()
            self._open = self._heartbeat = None

    def _open_log(self) -> None:
        if self._open is None:
            self._open = ExitStack()
            self._open.enter_context(printed_log())
            self._heartbeat = Heartbeat(lambda: self._prefix + self._state_text(), self._began)
            self._open.callback(self._heartbeat.close)

    def _log_line(self, text: str) -> None:
        if self._heartbeat is not None:
            self._heartbeat.log(self._prefix + text)

    @property
    def _main_metric(self) -> str:
        assert self._run is not None
        return self._run.metric_spec.main

    def _state_text(self) -> str:
        """Return a text about the current preparation, or about the progress if the training has begun."""
        progress = self._progress
        if progress is None or self._doing is not None:
            return self._doing or "starting"
        parts = [self._steps_text(progress.step), self._time_text(progress.t)]
        if progress.metric is not None:
            parts.append(f"last {progress.metric_name} {progress.metric:.4g}")
        tasks = format_count(progress.in_flight, "task")
        return " | ".join([*parts, f"{tasks} in flight", f"{progress.busy}/{progress.workers} busy"])

    def _steps_text(self, step: int) -> str:
        assert self._run is not None
        unit = "update" if self._run.asynchronous else "round"
        limit = self._run.limits.steps
        if limit is None:
            return f"{unit} {step}"
        return f"{unit} {step} of {limit}"

    def _time_text(self, t: float) -> str:
        assert self._run is not None
        limit = self._run.limits.time
        if limit is None:
            return f"t {t:.4g}"
        return f"t {t:.4g} of {limit:g}"


def next_commands(directory: Path) -> str:
    """Return a text with the commands that show and check a finished run."""
    run = quote(str(directory))
    folder = quote(str(directory.parent))
    return f"fedraa report {run}; fedraa board {folder}; fedraa replay {run}"


def _metric_texts(metrics: Mapping[str, float], main: str) -> list[str]:
    """Return `name value` for every metric of the whole test set, the main metric first."""
    names = [main, *(name for name in metrics if name != main and not name.startswith("client_"))]
    return [f"{metric_heading(name)} {metrics[name]:.4g}" for name in names if name in metrics]


def _last_step(directory: Path) -> int:
    """Return the step of the last evaluation in a run directory; -1 without an evaluation."""
    try:
        with (directory / EVALS).open(newline="") as stream:
            return max((int(row["step"]) for row in csv.DictReader(stream)), default=-1)
    except (OSError, KeyError, TypeError, ValueError):
        return -1
