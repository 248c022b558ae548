"""Comparisons of methods: the flags and the budget of each run, and the numbers of the table."""

import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import matplotlib.image
import numpy as np
import pandas as pd
import pytest
from matplotlib.figure import Figure
from refusals import refuses
from rich.console import Console

import fedraa
from fedraa import Experiment
from fedraa.cli.compare import summary_table
from fedraa.cli.main import main
from fedraa.objectives.metric_spec import SHARE, MetricSpec
from fedraa.report import curves
from fedraa.report.cells import make_experiments
from fedraa.report.compare import mean_interval, mean_time
from fedraa.report.comparison import mean_curve
from fedraa.report.comparison_frame import Comparison
from fedraa.report.curves import plot_curves, spread_labels
from fedraa.report.runs import Group, Run, load_groups


def test_cells_have_only_the_flags_of_their_method() -> None:
    runs = make_experiments(("fed-raa", "fedavg"), (3, 4), Experiment(mixing=0.3, fragments=3, momentum=0.2, time=5.0))
    assert [(cell.method, cell.seed) for cell in runs] == [("fed-raa", 3), ("fed-raa", 4), ("fedavg", 3), ("fedavg", 4)]
    assert [(cell.mixing, cell.fragments) for cell in runs] == [(0.3, 3)] * 2 + [(None, None)] * 2
    assert {(cell.momentum, cell.time) for cell in runs} == {(0.2, 5.0)}


def test_cells_without_budget_have_equal_time() -> None:
    assert {cell.time for cell in make_experiments(("fed-raa", "fedavg"), (0,), Experiment())} == {20.0}
    assert {cell.time for cell in make_experiments(("fed-raa", "fedasync"), (0,), Experiment(updates=50))} == {None}


@pytest.mark.parametrize(
    ("methods", "seeds", "flags", "field", "names"),
    [
        ((), (0,), {}, "methods", []),
        (("fedavg", "fedavg"), (0,), {}, "methods", ["fedavg"]),
        (("fedavg",), (1, 1), {}, "seeds", ["1"]),
        (("fedavg", "fedprox"), (0,), {"updates": 9}, "updates", ["--rounds 9"]),
        (("fed-raa",), (0,), {"rounds": 9}, "rounds", ["fed-raa", "--updates 9"]),
        (("fedavg", "fedprox"), (0,), {"mixing": 0.5}, "mixing", ["0.5", "fedavg", "fedprox"]),
        (("fed-raa", "fedavg"), (0,), {"updates": 50}, "updates", ["fedavg", "--time"]),
        (("fedavg",), (0,), {"seed": 3}, "seed", ["3", "seeds"]),
        (("fedavg",), (0,), {"method": "fedprox"}, "method", ["'fedprox'", "methods"]),
    ],
)
def test_cells_that_cannot_be_compared_are_refused(
    methods: tuple[str, ...], seeds: tuple[int, ...], flags: dict[str, object], field: str, names: list[str]
) -> None:
    with refuses(field, *names):
        make_experiments(methods, seeds, Experiment(**flags))


def test_cells_of_an_unknown_method_are_refused() -> None:
    with pytest.raises(ValueError, match=r"^method: .*fedmagic"):
        make_experiments(("fed-raa", "fedmagic"), (0,), Experiment())


def test_cells_with_updates_and_rounds_have_the_limit_of_their_method() -> None:
    runs = make_experiments(("fed-raa", "fedavg"), (0,), Experiment(updates=50, rounds=5))
    assert [(cell.updates, cell.rounds) for cell in runs] == [(50, None), (None, 5)]


def test_mean_interval_is_the_t_interval_within_the_range_of_the_metric() -> None:
    # The deviation is .02, and Student's 97.5 % quantile at 2 degrees of freedom is 4.303: .92 ± 4.303 * .02 / sqrt(3).
    assert mean_interval(pd.Series([0.9, 0.92, 0.94]), ".3f", SHARE) == "0.920 [0.870, 0.970]"
    # .98 ± 4.303 * .02 / sqrt(3) exceeds 1. An accuracy cannot exceed 1, a loss can.
    assert mean_interval(pd.Series([0.96, 0.98, 1.0]), ".3f", SHARE) == "0.980 [0.930, 1.000]"
    assert mean_interval(pd.Series([0.96, 0.98, 1.0]), ".3f") == "0.980 [0.930, 1.030]"
    # r2 may be negative, also if no observed value is.
    r2 = MetricSpec(("mse", "r2"), "mse", ("mse",)).bounds("r2")
    assert mean_interval(pd.Series([0.0339213, 0.0612042]), ".4f", r2) == "0.0476 [-0.1258, 0.2209]"
    assert mean_interval(pd.Series([0.9, 0.99]), ".3f", r2) == "0.945 [0.373, 1.000]"
    assert mean_interval(pd.Series([0.9]), ".3f") == "0.900"
    assert mean_interval(pd.Series([4.0, 4.0]), ".3g") == "4"
    # The standard deviation of these equal values is 7e-17, because their mean is rounded.
    assert mean_interval(pd.Series([0.4, 0.4, 0.4]), ".3g") == "0.4"
    assert mean_interval(pd.Series([4.0, np.inf]), ".3g") == "–"


def test_mean_time_with_a_missed_target_is_none() -> None:
    assert mean_time(pd.DataFrame({"time_to_target": [2.0, 4.0]})) == 3
    assert mean_time(pd.DataFrame({"time_to_target": [2.0, None]})) is None


def text(frame: pd.DataFrame, experiment: Experiment) -> str:
    console = Console(width=200)
    with console.capture() as captured:
        console.print(summary_table(frame, experiment))
    return captured.get()


def test_the_table_gives_the_ratio_to_the_first_method() -> None:
    shared = {
        "client_worst": 0.5,
        "time": 9.0,
        "steps": 1200000,
        "bytes_down": 10**6,
        "bytes_up": 5 * 10**5,
        "flops": 2e9,
    }
    shared |= {"staleness_mean": 1.5, "staleness_max": 4}
    frame = pd.DataFrame(
        [
            {"method": method, "seed": seed, "accuracy": 0.9, "time_to_target": reached} | shared
            for method, times in {"b": (2.0, 4.0), "a": (7.0, 8.0), "c": (5.0, None)}.items()
            for seed, reached in enumerate(times)
        ]
    )
    shown = text(frame, Experiment(target_accuracy=0.8, updates=1200000))
    rows = {line.split()[0]: line for line in shown.split("\n") if line.strip()}
    # Student's 97.5 % quantile at 1 degree of freedom is 12.71: 3 ± 12.71 and 7.5 ± 12.71 / 2, clipped at time 0.
    assert re.search(r"3 \[0, 15.71\] +1.00 ", rows["b"])
    assert re.search(r"7.5 \[1.147, 13.85\] +2.50 ", rows["a"])
    assert re.search(r"reached in 1 of 2 +– ", rows["c"])
    assert "n = 2 seeds, budget updates 1200000" in rows["digits:"]
    assert all(" 1200000 " in rows[name] for name in "abc")
    assert all("1.5 MB" in rows[name] and "2 GFLOP" in rows[name] and "1.50, max 4" in rows[name] for name in "abc")


def test_target_that_the_untrained_model_reaches_has_the_time_zero() -> None:
    shared = {"client_worst": 0.5, "time": 0.0, "steps": 0, "bytes_down": 0, "bytes_up": 0, "flops": 0.0}
    shared |= {"staleness_mean": 0.0, "staleness_max": 0, "accuracy": 0.9, "time_to_target": 0.0}
    frame = pd.DataFrame([{"method": "a", "seed": 0} | shared])
    assert "reached in" not in text(frame, Experiment(target_accuracy=0.1))


@pytest.mark.parametrize(("options", "unit"), [({"units": "physical"}, " (s)"), ({"clock": "wall"}, " (s)"), ({}, "")])
def test_times_have_the_unit_of_the_clock(options: dict[str, str], unit: str) -> None:
    shared = {"client_worst": 0.5, "time": 3.0, "steps": 1, "bytes_down": 0, "bytes_up": 0, "flops": 0.0}
    shared |= {"staleness_mean": 0.0, "staleness_max": 0, "accuracy": 0.9, "time_to_target": 2.0}
    frame = pd.DataFrame([{"method": "a", "seed": 0} | shared])
    shown = text(frame, Experiment.model_validate({"target_accuracy": 0.8, "workers": 2} | options))
    [headings] = [line for line in shown.split("\n") if "worst client" in line]
    assert re.split(r" {2,}", headings.strip())[3:6:2] == [f"time to 0.8{unit}", f"time{unit}"]


def test_curve_over_time_has_the_last_metric_of_every_seed_at_the_common_time_limit(
    sample_runs: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Both seeds end at time 3. Their last evaluations are earlier, at different times."""
    members = (Run(sample_runs / "fed-raa-ended"), Run(sample_runs / "fed-raa-ended"))
    for member, last, accuracy in zip(members, (1.0, 2.0), (0.7, 0.9), strict=True):
        monkeypatch.setattr(member, "evals", pd.DataFrame({"t": [0.0, last], "accuracy": [0.1, accuracy]}))
        monkeypatch.setitem(member.summary, "time", 3.0)
    at, middle, _, _ = mean_curve(Group("two", "two", members), "t", "accuracy")
    assert at.tolist() == [0, 1, 2, 3]
    assert middle.tolist() == pytest.approx([0.1, 0.4, 0.8, 0.8])


def test_notebook_shows_no_mean_if_a_seed_diverged(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Comparison, "words", [])
    (tmp_path / "plot.png").write_bytes(b"")
    frame = pd.DataFrame({"method": ["a", "a", "b", "b"], "mse": [1.0, None, 2.0, 4.0]})
    page = Comparison.of(frame, tmp_path, "plot.png", "mse")._repr_html_()
    assert re.findall(r"<td>(.*?)</td>", page) == ["NaN", "2", "3", "2"]


def test_spread_labels_keeps_labels_apart_and_within_the_axis() -> None:
    wanted = np.array([0.9, 0.98, 0.99, 0.995])
    placed = spread_labels(wanted, 0.05)
    assert placed.max() <= 1
    assert np.diff(placed).min() >= 0.05 - 1e-12
    assert np.allclose(spread_labels(np.array([0.2, 0.6]), 0.05), [0.2, 0.6])
    low = spread_labels(np.array([0.0, 0.0, 0.01]), 0.05)
    assert low.min() >= 0
    assert np.diff(low).min() >= 0.05 - 1e-12


@pytest.fixture
def saved(monkeypatch: pytest.MonkeyPatch) -> list[Figure]:
    """Return the figures that a test saves, in place of their files."""
    figures: list[Figure] = []
    monkeypatch.setattr(curves.Figure, "savefig", lambda figure, path, **options: figures.append(figure))
    return figures


def test_plot_shows_a_target_that_no_run_reached(saved: list[Figure], tmp_path: Path) -> None:
    evals = pd.DataFrame({"t": [0.0, 1.0], "accuracy": [0.1, 0.5]})
    plot_curves(
        {"fedavg": [evals]}, tmp_path / "plot.png", title="", time_label="virtual time", target=0.95, column="accuracy"
    )
    low, high = saved[0].axes[0].get_ylim()
    assert 0 <= low < 0.95 < high <= 1


def test_plot_shows_more_methods_than_there_are_line_styles(saved: list[Figure], tmp_path: Path) -> None:
    evals = pd.DataFrame({"t": [0.0, 1.0], "accuracy": [0.1, 0.8]})
    runs = {f"method {number}": [evals] for number in range(40)}
    plot_curves(runs, tmp_path / "plot.png", title="", time_label="virtual time", target=None, column="accuracy")
    (axes,) = saved[0].axes
    labels = {text.get_text(): text.xyann[1] for text in axes.texts}
    assert labels.keys() == runs.keys()
    assert 0 <= min(labels.values()) < max(labels.values()) <= 1
    assert min(np.diff(sorted(labels.values()))) > 0
    assert len([line for line in axes.get_lines() if line.get_drawstyle() == "steps-post"]) == 40


def test_a_comparison_writes_runs_table_and_plot(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "all"
    flags = "--time 1.5 --clients 4 --hidden 20 --engine local --target-accuracy 0.99 --seeds 0 1"
    assert main(["compare", "fed-raa", "fedavg", *flags.split(), "--out", str(out)]) == 0
    frame = pd.read_csv(out / "compare.csv")
    assert list(zip(frame["method"], frame["seed"], strict=True)) == [
        ("fed-raa", 0),
        ("fed-raa", 1),
        ("fedavg", 0),
        ("fedavg", 1),
    ]
    assert (frame["time"] == 1.5).all()
    for directory, accuracy in zip(frame["directory"], frame["accuracy"], strict=True):
        evals = pd.read_csv(out / directory / "evals.csv")
        assert evals["accuracy"].iloc[-1] == accuracy
    height, width, _ = matplotlib.image.imread(out / "compare.png").shape
    assert width > height > 300
    shown = capsys.readouterr().out
    assert "reached in 0 of 2" in shown
    assert "fedavg seed 1: accuracy" in shown


def test_compare_writes_nothing_if_one_cell_cannot_run(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "all"
    flags = ["--momentum", "0.5", "--time", "1", "--engine", "local", "--out", str(out)]
    assert main(["compare", "fedavg", "scaffold", *flags]) == 2
    assert capsys.readouterr().err.startswith("fedraa: momentum: ")
    assert not out.exists()


def test_compare_from_python_returns_a_table_and_prints_nothing(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    base = Experiment(clients=4, hidden=(8,), local_epochs=1, engine="local", out=tmp_path / "all")
    frame = fedraa.compare(["fed-raa", "fedavg"], range(2), base, time=0.2)
    assert list(zip(frame["method"], frame["seed"], strict=True)) == [
        ("fed-raa", 0),
        ("fed-raa", 1),
        ("fedavg", 0),
        ("fedavg", 1),
    ]
    assert (frame["time"] == 0.2).all()
    written = pd.read_csv(tmp_path / "all" / "compare.csv").astype(frame.dtypes.to_dict())
    # The file has names below its folder, so that the folder can be moved.
    assert frame["directory"].tolist() == [str(tmp_path / "all" / name) for name in written["directory"]]
    assert frame.drop(columns="directory").equals(written.drop(columns="directory"))
    assert all(name in str(fedraa.compare.__doc__) for name in frame.columns)
    assert capsys.readouterr() == ("", "")


@pytest.mark.parametrize("name", ["in $\\frac$", "not \udcff UTF-8"])
def test_names_with_special_characters_are_shown_in_plots_and_pages(name: str, tmp_path: Path) -> None:
    fields: dict[str, Any] = {"hidden": (8,), "clients": 3, "local_steps": 1, "engine": "local", "quiet": True}
    method = replace(fedraa.method("fedavg"), name=name)
    data = replace(_tags(), name=name)
    folder = tmp_path / name
    table = fedraa.compare([method], dataset=data, objective="multilabel", rounds=2, out=folder, **fields)
    fedraa.report(folder, tmp_path / "page.html")
    shown = name.replace("\udcff", r"\udcff")
    assert shown in (tmp_path / "page.html").read_text()
    plot = fedraa.History(table["directory"].iloc[0]).plot("loss", "step")
    assert shown in plot.axes[0].get_title().replace(r"\$", "$")


def test_methods_with_and_without_personal_models_are_reported_together(tmp_path: Path) -> None:
    fields: dict[str, Any] = {"hidden": (8,), "clients": 3, "local_steps": 1, "engine": "local", "quiet": True}
    fedraa.compare(["ditto", "fedavg"], rounds=2, out=tmp_path / "runs", **fields)
    labels = {group.label for group in load_groups([tmp_path / "runs"])}
    assert labels == {"ditto", "fedavg"}
    fedraa.run(method="fedavg", objective="multilabel", dataset=_tags(), rounds=2, out=tmp_path / "other", **fields)
    with refuses("runs", "accuracy", "f1"):
        load_groups([tmp_path / "runs", tmp_path / "other"])


def _tags() -> fedraa.Dataset:
    x = np.random.default_rng(0).normal(size=(60, 4)).astype(np.float32)
    return fedraa.Dataset("tags", x[:40], (x[:40] > 0).astype(np.float32), x[40:], (x[40:] > 0).astype(np.float32))
