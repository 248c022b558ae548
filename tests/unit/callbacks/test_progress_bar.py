"""The progress bar: its text, and its display only in a terminal and in a notebook."""

import re
import sys
import time
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from rich.console import Console

from fedraa import waiting
from fedraa.callbacks import Limits, Progress, ProgressBar, RunStart, progress_bar
from fedraa.callbacks.progress_bar import progress_line
from fedraa.config.experiment import Experiment

START = RunStart(Experiment(), Path("run"), Limits(200, None, None), resumed=False)
QUARTER = Progress(50, 2.0, 0.9, 3, Limits(200, None, None), 1.25, 2, 2)


@pytest.mark.parametrize(
    ("steps", "time", "expected"),
    [(200, None, 0.25), (None, 4.0, 0.5), (200, 4.0, 0.5), (100, 40.0, 0.5), (20, None, 1.0), (None, None, 0.0)],
)
def test_completed_fraction_is_relative_to_the_nearest_limit(
    steps: int | None, time: float | None, expected: float
) -> None:
    assert Progress(50, 2.0, None, 3, Limits(steps, time, None), 1.25, 2, 2).completed_fraction == expected


def test_progress_line_shows_only_known_values() -> None:
    assert progress_line(Progress(50, 2.0, 0.9, 3, Limits(200, None, None), 1.25, 2, 2)) == (
        "step 50/200 · time 2 · accuracy 0.900 · staleness 1.2 · 3 in flight · 2/2 busy"
    )
    assert progress_line(Progress(50, 2.0, None, 3, Limits(None, 8.0, None), 0.0, 1, 2)) == (
        "step 50 · time 2/8 · 3 in flight · 1/2 busy"
    )


def test_progress_line_is_shortened_to_the_available_width() -> None:
    assert progress_line(QUARTER, 31.24).startswith("step 50/200 (31.2/s) · time 2 · ")
    assert progress_line(QUARTER, 31.24, room=52) == "step 50/200 (31.2/s) · time 2 · accuracy 0.900"
    assert progress_line(QUARTER, 31.24, room=40) == "step 50/200 (31.2/s) · accuracy 0.900"


def test_bar_with_metrics_and_remaining_time_fits_eighty_columns(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(progress_bar, "Console", lambda: Console(force_terminal=True, force_jupyter=False, width=80))
    bar = ProgressBar()
    bar.on_start(START)
    bar.on_prepare("starting Ray")
    bar.on_progress(QUARTER)
    bar.on_close()
    shown = re.sub(r"\x1b\[[\d;?]*[A-Za-z]", "", capsys.readouterr().out).replace("\r", "\n")
    last = [line for line in shown.split("\n") if line.strip()][-1]
    assert len(last) <= 80
    assert re.search(r"^fed-raa \S+.* step 50/200 · .*accuracy 0\.900 .*:", last)


def test_slow_preparation_step_is_shown_and_removed_again(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(waiting, "Console", lambda: Console(force_terminal=True, force_jupyter=False, width=80))
    bar = ProgressBar(waiting.Waiting(0.0))
    for _ in range(200):
        bar.on_prepare("reading digits")
        time.sleep(0.01)
        if "reading digits" in (shown := capsys.readouterr().out):
            break
    assert "reading digits" in shown
    bar.on_prepare(None)
    assert capsys.readouterr().out.endswith("\x1b[2K")


def test_quick_preparation_step_is_not_shown(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(waiting, "Console", lambda: Console(force_terminal=True, force_jupyter=False, width=80))
    bar = ProgressBar()
    bar.on_prepare("reading digits")
    bar.on_prepare(None)
    assert capsys.readouterr() == ("", "")


def test_bar_is_silent_without_a_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    bar = ProgressBar()
    bar.on_start(START)
    bar.on_progress(QUARTER)
    bar.on_close()
    assert capsys.readouterr() == ("", "")


def test_bar_is_shown_in_a_terminal_until_the_run_ends(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(progress_bar, "Console", lambda: Console(force_terminal=True, force_jupyter=False, width=150))
    bar = ProgressBar()
    # A server that died starts again from its checkpoint.
    for _ in range(2):
        bar.on_start(START)
        bar.on_progress(QUARTER)
    bar.on_close()
    shown = capsys.readouterr().out
    assert "step 50/200 · time 2 · accuracy 0.900" in shown
    # The bar is removed.
    assert shown.endswith("\x1b[2K")


def test_a_notebook_has_one_display_that_is_updated(monkeypatch: pytest.MonkeyPatch) -> None:
    shown: list[tuple[str, Any]] = []

    class Handle:
        def update(self, content: Any) -> None:
            shown.append(("update", content))

    def display(content: Any, *, display_id: bool) -> Handle:
        assert display_id is True
        shown.append(("display", content))
        return Handle()

    fake = ModuleType("IPython.display")
    fake.display = display  # type: ignore[attr-defined]
    package = ModuleType("IPython")
    package.display = fake  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "IPython", package)
    monkeypatch.setitem(sys.modules, "IPython.display", fake)
    monkeypatch.setattr(progress_bar, "Console", lambda: Console(force_jupyter=True))
    bar = ProgressBar()
    bar.on_start(START)
    bar.on_progress(QUARTER)
    bar.on_close()
    assert [what for what, _ in shown] == ["display", "update"]
    assert repr(shown[0][1]) == "fed-raa 0% starting"
    assert shown[1][1]._repr_html_() == (
        'fed-raa <progress value="0.2500" max="1"></progress> '
        "step 50/200 · time 2 · accuracy 0.900 · staleness 1.2 · 3 in flight · 2/2 busy"
    )
