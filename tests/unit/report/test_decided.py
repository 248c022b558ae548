"""Where a race is decided: axes without the climb, on which no method is lost."""

import warnings
from pathlib import Path

import matplotlib.image
import numpy as np
import pandas as pd
import pytest
from matplotlib.figure import Figure

from fedraa.report import curves
from fedraa.report.curves import plot_curves
from fedraa.report.decided import late, show_decided


def test_of_a_line_the_second_half_counts() -> None:
    # half of the way from 0 to 8 is 4, where the line from .2 at 3 to .8 at 5 is at .5
    found = late(np.array([0.0, 3.0, 5.0, 8.0]), np.array([0.0, 0.2, 0.8, 0.9]))
    assert sorted(found) == pytest.approx([0.5, 0.8, 0.9])
    assert late(np.array([3.0]), np.array([0.1])).tolist() == [0.1, 0.1]


def test_the_axis_holds_what_is_seen_and_no_share_beyond_one() -> None:
    axes = Figure().subplots()
    show_decided(axes, [np.array([0.9, 0.98]), np.array([0.94, np.nan])], shares=True)
    assert axes.get_ylim() == pytest.approx((0.9 - 0.05 * 0.08, 0.98 + 0.05 * 0.08))
    show_decided(axes, [np.array([0.1, 1.0])], shares=True)
    assert axes.get_ylim() == pytest.approx((0.055, 1.0))
    show_decided(axes, [np.array([7.0, 7.0])], shares=False)
    low, high = axes.get_ylim()
    assert low < 7 < high
    show_decided(axes, [np.array([np.nan])], shares=False)
    assert axes.get_ylim() == (low, high)


def frame(times: list[float], values: list[float]) -> pd.DataFrame:
    return pd.DataFrame({"t": times, "accuracy": values})


def test_a_method_that_never_gets_far_is_on_the_picture(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    drawn: list[Figure] = []
    monkeypatch.setattr(curves, "Figure", lambda **given: drawn.append(Figure(**given)) or drawn[-1])
    quick = frame([0, 1, 2, 4, 8], [0.1, 0.8, 0.9, 0.93, 0.95])
    runs = {"quick": [quick], "slow": [frame([0.0], [0.12])], "lost": [frame([0, 4, 8], [0.1, np.nan, np.nan])]}
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        plot_curves(runs, tmp_path / "all.png", title="", clock="virtual")
        plot_curves({"quick": [quick]}, tmp_path / "one.png", title="", clock="virtual", target=0.97)
        plot_curves({"slow": [frame([0.0], [0.12])]}, tmp_path / "none.png", title="", clock="virtual")
    axes = drawn[0].axes[0]
    assert axes.get_ylim()[0] < 0.12
    assert {text.get_text() for text in axes.texts} == {"quick", "slow", "lost: not finite"}
    low, high = drawn[1].axes[0].get_ylim()
    assert 0.9 < low < 0.95  # the climb to .9 at a quarter of the time is not shown
    assert high > 0.97
    assert matplotlib.image.imread(tmp_path / "none.png").shape[2] == 4
