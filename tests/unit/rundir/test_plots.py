"""Runs and comparisons as notebooks show them."""

import re
from pathlib import Path

import matplotlib.image
import pandas as pd
import pytest
from refusals import refuses

import fedraa
from fedraa import Experiment, History
from fedraa.report.comparison_frame import Comparison

FLAGS = {"engine": "local", "clients": 4, "hidden": (8,), "local_steps": 1}


@pytest.fixture(scope="module")
def compared(tmp_path_factory: pytest.TempPathFactory) -> Comparison:
    out = tmp_path_factory.mktemp("compared") / "all"
    comparison = fedraa.compare(["fed-raa", "fedavg"], [0, 1], Experiment(time=0.1, out=out, **FLAGS))
    assert isinstance(comparison, Comparison)
    return comparison


def test_notebook_shows_a_history_as_a_table_with_its_curve(compared: Comparison) -> None:
    history = History(compared["directory"].iloc[0])
    text = history._repr_html_()
    assert "fed-raa on digits, seed 0" in text
    assert f"<th>accuracy</th><td>{history.summary['accuracy']:.4f}</td>" in text
    assert "<th>state</th><td>ended by time</td>" in text
    points = re.search(r'points="([^"]*)"', text)
    assert points is not None
    assert len(points[1].split()) == len(history.evals)


def test_plot_of_a_history_draws_a_metric_of_its_evaluations(compared: Comparison, tmp_path: Path) -> None:
    history = History(compared.folder / "fed-raa-0")
    (axes,) = history.plot().axes
    assert axes.get_xlabel() == "virtual time"
    assert axes.lines[0].get_ydata().tolist() == history.evals["accuracy"].tolist()
    (tmp_path / "loss.png").write_bytes(history.plot("loss", "step")._repr_png_())
    height, width, _ = matplotlib.image.imread(tmp_path / "loss.png").shape
    assert width > height > 200
    with refuses("plot", "step, t, ", got="los"):
        history.plot("los")


def test_plot_of_a_run_in_physical_units_has_seconds(compared: Comparison, monkeypatch: pytest.MonkeyPatch) -> None:
    history = History(compared.folder / "fed-raa-0")
    config = history.config
    config["experiment"]["units"] = "physical"
    monkeypatch.setattr(History, "config", config)
    (axes,) = history.plot().axes
    assert axes.get_xlabel() == "virtual time (s)"


def test_notebook_shows_a_comparison_with_text_means_and_curves(compared: Comparison) -> None:
    text = compared._repr_html_()
    assert compared.words[0] in text.replace("&#x27;", "'")
    assert "data:image/png;base64," in text
    assert re.search(r"<th>fed-raa</th>\s+<td>", text)
    assert type(compared[["method", "accuracy"]]) is pd.DataFrame
    assert type(compared.query("seed == 0")) is pd.DataFrame
