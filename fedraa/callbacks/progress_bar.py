"""A progress bar of a run, in a terminal or a notebook."""

import time
from dataclasses import dataclass
from html import escape
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, TextColumn, TimeRemainingColumn
from rich.progress import Progress as Bar

from fedraa.callbacks.callback import Callback
from fedraa.callbacks.events import Progress, RunStart
from fedraa.errors import InputError
from fedraa.rundir.history import title_of_method
from fedraa.waiting import Waiting

# In a terminal of at least this width, in characters, the bar is long.
WIDE_TERMINAL = 120
# The lengths of a long bar and of a short bar, in characters.
LONG_BAR = 40
SHORT_BAR = 16
# Characters that the remaining time and the spaces beside the bar need.
BESIDE_BAR = 10
# The step rate varies much at first, so it is not shown before this number of real seconds.
SETTLED_S = 1.0


class ProgressBar(Callback):
    """A progress bar in a terminal or a notebook. In a terminal it disappears when the run ends.

    Before the run starts, it shows the current preparation. If the output is a pipe or a file, it shows nothing.

    Args:
        waiting: A status line that already shows the current preparation; None to create one when it is needed.

    Raises:
        InputError: `waiting` is no status line.
    """

    blocking = False
    place = ""
    """A label such as `run 1/4`, which is shown before the name of the method."""

    def __init__(self, waiting: Waiting | None = None) -> None:
        if not isinstance(waiting, Waiting | None):
            raise InputError("callbacks.waiting", got=waiting, expected="a status line of fedraa, or None")
        self._waiting = waiting
        self._shown: _Terminal | _Notebook | None = None
        # The real time in seconds and the step at the first call of `on_progress`.
        self._since: tuple[float, int] | None = None

    def on_prepare(self, doing: str | None) -> None:
        if self._shown is not None:
            self._shown.say(doing or "starting")
        elif doing is None:
            self._end_waiting()
        else:
            self._waiting = self._waiting or Waiting()
            self._waiting.say(doing)

    def on_start(self, run: RunStart) -> None:
        self.on_close()
        self._since = None
        console = Console()
        name = f"{self.place} {title_of_method(run.experiment.method)}".strip()
        if console.is_jupyter:
            self._shown = _Notebook(name)
        elif console.is_terminal:
            self._shown = _Terminal(name, console)

    def on_progress(self, progress: Progress) -> None:
        if self._shown is not None:
            self._shown.update(progress, self._step_rate(progress.step))

    def on_close(self) -> None:
        self._end_waiting()
        if self._shown is not None:
            self._shown.close()
            self._shown = None

    def _end_waiting(self) -> None:
        if self._waiting is not None:
            self._waiting.end_display()
            self._waiting = None

    def _step_rate(self, step: int) -> float | None:
        """Return the number of server steps per real second; None in the first `SETTLED_S` seconds."""
        now = time.monotonic()
        if self._since is None:
            self._since = (now, step)
        start, first_step = self._since
        if now - start <= SETTLED_S:
            return None
        return (step - first_step) / (now - start)


class _Terminal:
    def __init__(self, name: str, console: Console) -> None:
        bar = LONG_BAR if console.width >= WIDE_TERMINAL else SHORT_BAR
        columns = (TextColumn("{task.description}"), BarColumn(bar), TextColumn("{task.fields[status]}"))
        self._room = console.width - len(name) - bar - BESIDE_BAR
        self._bar = Bar(*columns, TimeRemainingColumn(), console=console, transient=True)
        self._task = self._bar.add_task(name, total=1.0, status="starting")
        self._bar.start()

    def say(self, doing: str) -> None:
        self._bar.update(self._task, status=doing)

    def update(self, progress: Progress, rate: float | None) -> None:
        self._bar.update(
            self._task, completed=progress.completed_fraction, status=progress_line(progress, rate, self._room)
        )

    def close(self) -> None:
        self._bar.stop()


class _Notebook:
    """A line of text that is updated in place in a notebook. It needs no package for widgets."""

    def __init__(self, name: str) -> None:
        # Every notebook has IPython.
        from IPython import display as shown

        # IPython has no type hints.
        show: Any = shown.display
        self._name = name
        self._handle = show(Line(name, 0.0, "starting"), display_id=True)

    def say(self, doing: str) -> None:
        self._handle.update(Line(self._name, 0.0, doing))

    def update(self, progress: Progress, rate: float | None) -> None:
        self._handle.update(Line(self._name, progress.completed_fraction, progress_line(progress, rate)))

    def close(self) -> None:
        """Do nothing, so that the last line stays visible."""


@dataclass(frozen=True)
class Line:
    """The progress as HTML or plain text for a notebook."""

    name: str
    share: float
    status: str

    def _repr_html_(self) -> str:
        return f'{escape(self.name)} <progress value="{self.share:.4f}" max="1"></progress> {escape(self.status)}'

    def __repr__(self) -> str:
        return f"{self.name} {self.share:.0%} {self.status}"


def progress_line(progress: Progress, rate: float | None = None, room: int | None = None) -> str:
    """Return the progress as one line of text.

    It has the step, step rate, time, metric, staleness, tasks in flight and busy workers. A line that is too long omits
    the tasks in flight and the busy workers. If it is still too long, it also omits the staleness, and then the time.

    Args:
        progress: The progress of the run.
        rate: Steps per real second; None if it is not known yet.
        room: The maximum number of characters; None for no limit.
    """
    limits = progress.limits
    steps = f"step {progress.step}"
    if limits.steps:
        steps += f"/{limits.steps}"
    if rate is not None:
        steps += f" ({rate:.3g}/s)"
    time = f"time {progress.t:.4g}"
    if limits.time:
        time += f"/{limits.time:g}"
    parts = [steps, time]
    if progress.metric is not None:
        parts.append(f"{progress.metric_name} {progress.metric:.3f}")
    staleness = f"staleness {progress.staleness:.1f}"
    if progress.staleness:
        parts.append(staleness)
    work = f"{progress.in_flight} in flight · {progress.busy}/{progress.workers} busy"
    parts.append(work)
    for text in (work, staleness, time):
        if room is not None and len(" · ".join(parts)) > room and text in parts:
            parts.remove(text)
    return " · ".join(parts)
