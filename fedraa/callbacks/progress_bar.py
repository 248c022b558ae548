"""How far a run is, shown while it lasts: in a terminal, or in a notebook."""

from dataclasses import dataclass
from html import escape
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, TextColumn, TimeRemainingColumn
from rich.progress import Progress as Bar

from fedraa.callbacks.callback import Callback
from fedraa.callbacks.events import Progress, RunStart

COLUMNS = (TextColumn("{task.description}"), BarColumn(), TextColumn("{task.fields[figures]}"), TimeRemainingColumn())


class ProgressBar(Callback):
    """A bar that a terminal shows until the run ends, and that a notebook keeps; silent elsewhere."""

    waits = False

    def __init__(self) -> None:
        self._shown: _Terminal | _Notebook | None = None

    def on_start(self, run: RunStart) -> None:
        self.on_close()
        console, name = Console(), run.experiment.method
        if console.is_jupyter:
            self._shown = _Notebook(name)
        elif console.is_terminal:
            self._shown = _Terminal(name, console)

    def on_progress(self, progress: Progress) -> None:
        if self._shown is not None:
            self._shown.update(share(progress), figures(progress))

    def on_close(self) -> None:
        if self._shown is not None:
            self._shown.close()
            self._shown = None


class _Terminal:
    def __init__(self, name: str, console: Console) -> None:
        self._bar = Bar(*COLUMNS, console=console, transient=True)
        self._task = self._bar.add_task(name, total=1.0, figures="starting")
        self._bar.start()

    def update(self, share: float, figures: str) -> None:
        self._bar.update(self._task, completed=share, figures=figures)

    def close(self) -> None:
        self._bar.stop()


class _Notebook:
    """One display, updated: it needs no widgets."""

    def __init__(self, name: str) -> None:
        from IPython import display as shown  # it is there where a notebook is

        show: Any = shown.display  # of which no types are known
        self._name = name
        self._handle = show(Line(name, 0.0, "starting"), display_id=True)

    def update(self, share: float, figures: str) -> None:
        self._handle.update(Line(self._name, share, figures))

    def close(self) -> None:
        """What was shown last stays."""


@dataclass(frozen=True)
class Line:
    """What a notebook shows: as HTML, or as text where it has none."""

    name: str
    share: float
    figures: str

    def _repr_html_(self) -> str:
        return f'{escape(self.name)} <progress value="{self.share:.4f}" max="1"></progress> {escape(self.figures)}'

    def __repr__(self) -> str:
        return f"{self.name} {self.share:.0%} {self.figures}"


def share(progress: Progress) -> float:
    """How far a run is towards the nearest of its limits of steps and time, 0 to 1."""
    limits = progress.limits
    shares = [progress.step / limits.steps if limits.steps else 0.0, progress.t / limits.time if limits.time else 0.0]
    return min(1.0, max(shares))


def figures(progress: Progress) -> str:
    """Step, time, accuracy, staleness, tasks in flight and workers that have work, on one line."""
    limits = progress.limits
    steps = f"step {progress.step}" + (f"/{limits.steps}" if limits.steps else "")
    time = f"time {progress.t:.4g}" + (f"/{limits.time:g}" if limits.time else "")
    accuracy = "" if progress.accuracy is None else f"{progress.figure} {progress.accuracy:.3f}"
    stale = f"staleness {progress.staleness:.1f}" if progress.staleness else ""
    work = f"{progress.in_flight} in flight · {progress.busy}/{progress.workers} busy"
    return " · ".join(text for text in (steps, time, accuracy, stale, work) if text)
