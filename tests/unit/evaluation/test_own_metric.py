"""User-defined metrics in evaluations, logs, tables and replay, and the errors about malformed ones."""

import csv
import json
import math
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from refusals import refuses
from torch import Tensor
from torch.nn import functional as F

import fedraa as fl
from fedraa.api import compare
from fedraa.data import Dataset
from fedraa.engine.build import build_run
from fedraa.evaluation import metrics
from fedraa.evaluation.evaluator import BATCH, Evaluator
from fedraa.evaluation.metrics import TAKEN, make_metrics
from fedraa.objectives import MetricSpec
from fedraa.replay.replay import Inconsistent, replay
from fedraa.report.compare import CELLS, FROM_SUMMARY, PER_CELL
from fedraa.report.runs import load_groups
from fedraa.report.tables import make_method_table, make_run_table
from fedraa.report.tables import table_metrics as report_columns
from fedraa.rundir.history import History
from fedraa.rundir.summary import summarise_run

EVAL_COLUMNS = ("step", "t", "wall", "accuracy", "loss", "client_mean", "client_std", "client_worst")
SMALL: dict[str, Any] = {"engine": "local", "clients": 3, "hidden": (8,), "local_steps": 1, "updates": 6, "quiet": True}


@dataclass(frozen=True)
class Top(fl.Metric):
    """A metric that is True if the label is among the `k` most likely ones."""

    k: int = 3
    name: str = "top"

    def values(self, outputs: Tensor, labels: Tensor) -> Tensor:
        return (outputs.topk(self.k).indices == labels[:, None]).any(dim=1)


def entropy(outputs: Tensor, labels: Tensor) -> Tensor:
    return -(outputs.softmax(1) * outputs.log_softmax(1)).sum(1)


def spoils(outputs: Tensor, labels: Tensor) -> Tensor:
    labels.zero_()
    return outputs.mul_(0).sum(1)


def surprise(outputs: Tensor, labels: Tensor) -> Tensor:
    return F.cross_entropy(outputs, labels, reduction="none")


@pytest.fixture(scope="module")
def history(tmp_path_factory: pytest.TempPathFactory) -> History:
    own = (Top(2, "top2"), entropy, spoils, f"{__name__}:surprise")
    return fl.run(fl.Experiment(**SMALL, metrics=own, out=tmp_path_factory.mktemp("own") / "run"))


def test_custom_metrics_are_in_evals_events_and_the_summary(history: History) -> None:
    names = ["top2", "entropy", "spoils", "surprise"]
    with (history.directory / "evals.csv").open() as stream:
        header, *rows = csv.reader(stream)
    assert header == [*EVAL_COLUMNS, *names]
    lines = [line for line in history.lines() if line["kind"] == "eval"]
    assert [[repr(line[name]) for name in names] for line in lines] == [row[-4:] for row in rows]
    last = history.evals.iloc[-1]
    assert history.summary["metrics"] == {name: pytest.approx(last[name]) for name in names}
    # The metric is the mean in float64. A metric that changes its arguments has no effect on other metrics.
    assert history.evals["surprise"].to_numpy() == pytest.approx(history.evals["loss"].to_numpy(), rel=1e-5)
    assert (history.evals["top2"] > history.evals["accuracy"]).all()
    assert (history.evals["spoils"] == 0).all()
    assert (history.evals["entropy"] < math.log(10)).all()
    assert history.config["experiment"]["metrics"] == [
        f"{__name__}:Top(k=2, name='top2')",
        *(f"{__name__}:{name}" for name in names[1:]),
    ]


def test_custom_metrics_do_not_change_the_run(history: History, tmp_path: Path) -> None:
    plain = fl.run(fl.Experiment(**SMALL, out=tmp_path / "run"))
    assert plain.summary["model_sha256"] == history.summary["model_sha256"]
    assert "metrics" not in plain.summary
    assert plain.config["resolved"]["metrics"] == []
    evals, expected = (run.evals[list(EVAL_COLUMNS)].drop(columns="wall") for run in (history, plain))
    pd.testing.assert_frame_equal(evals, expected)
    assert (plain.directory / "evals.csv").read_text().splitlines()[0] == ",".join(EVAL_COLUMNS)


def test_replay_reads_custom_metrics_from_the_configuration(history: History, tmp_path: Path) -> None:
    assert "consistent" in replay(history.directory)
    evals = history.directory / "evals.csv"
    text = evals.read_text()
    try:
        evals.write_text(text.replace("entropy", "energy"))
        names = text.splitlines()[0].split(",")
        column = 1 + next(number for number, name in enumerate(names) if "entropy" in name)
        with refuses(f"evals.csv line 1 column {column}", names[column - 1], error=Inconsistent):
            replay(history.directory)
        evals.write_text(text.replace(text.splitlines()[2].rsplit(",", 1)[1], "0.5"))
        with refuses("evals.csv line 3 surprise", got="0.5", error=Inconsistent):
            replay(history.directory)
    finally:
        evals.write_text(text)


def test_custom_metrics_are_in_the_tables_of_a_report(history: History, tmp_path: Path) -> None:
    plain = fl.run(fl.Experiment(**SMALL, method="fedasync", out=tmp_path / "run"))
    groups = load_groups([history.directory, plain.directory])
    columns = report_columns(groups, {})
    table = make_method_table(groups, columns)
    place = table.columns.index("top2")
    assert table.rows[0][place].text == f"{history.evals['top2'].iloc[-1]:.4g}"
    assert table.rows[1][place].text == "–"
    assert make_run_table(groups, columns).frame["surprise"].tolist() == [
        pytest.approx(history.evals["surprise"].iloc[-1]),
        pytest.approx(math.nan, nan_ok=True),
    ]


def test_custom_metrics_are_columns_of_a_comparison(tmp_path: Path) -> None:
    experiment = fl.Experiment(**SMALL | {"updates": None, "time": 0.1}, metrics=(Top(2, "top2"),), out=tmp_path / "c")
    frame = compare(["fedasync", "fed-raa"], [0, 1], experiment)
    assert (frame["top2"] >= frame["accuracy"]).all()
    assert "top2" in pd.read_csv(tmp_path / "c" / CELLS).columns


def test_mean_of_a_metric_is_exact_for_any_batches(monkeypatch: pytest.MonkeyPatch) -> None:
    rng = np.random.default_rng(0)
    x, y = rng.normal(size=(2 * BATCH + 1, 2)).astype(np.float32), np.arange(2 * BATCH + 1) % 2
    dataset = Dataset("two", x, y, x, y, 2)
    spec = build_run(fl.Experiment(clients=2, fragments=1, hidden=(2,), metrics=(scale,)), dataset=dataset)
    evaluator = Evaluator(spec.traced, spec.evaluation_data, metrics=spec.metrics)
    figure = evaluator.evaluate(spec.params).metrics["scale"]
    # Every second value is 1e8 in float32, the others 0.1 in float32: naive sums of 2,049 lose digits.
    expected = math.fsum(float(np.float32(0.1)) if label else 1e8 for label in y) / len(y)
    assert figure == expected
    monkeypatch.setattr("fedraa.evaluation.evaluator.BATCH", 100)
    assert evaluator.evaluate(spec.params).metrics["scale"] == expected


def scale(outputs: Tensor, labels: Tensor) -> Tensor:
    return torch.where(labels == 0, 1e8, 0.1)


class Sudden:
    """A metric that is finite only in its first calls: two in the trial before the start, and the first evaluation."""

    name = "sudden"

    def __init__(self) -> None:
        self.asked = 0

    def values(self, outputs: Tensor, labels: Tensor) -> Tensor:
        self.asked += 1
        return torch.full(labels.shape, 1.0 if self.asked <= 3 else math.inf)


def test_infinite_metric_is_inf_in_evals_and_null_in_the_log(tmp_path: Path) -> None:
    history = fl.run(fl.Experiment(**SMALL, metrics=(Sudden(),), out=tmp_path / "run"))
    assert history.evals["sudden"].tolist() == [1.0, math.inf, math.inf]
    assert [line["sudden"] for line in history.lines() if line["kind"] == "eval"] == [1.0, None, None]
    assert history.summary["metrics"] == {"sudden": None}
    assert "consistent" in replay(history.directory)


def test_every_name_in_logs_and_tables_is_reserved(history: History) -> None:
    kinds = {"seq", "kind", "t", "wall", "step"}
    groups = load_groups([history.directory])
    plain = {*summarise_run(history)} | {*FROM_SUMMARY, *PER_CELL, *EVAL_COLUMNS} | kinds
    tables = {column.name for column in report_columns(groups, {load_groups([history.directory])[0].first: 1.0})}
    frames = {*make_run_table(groups, []).frame.columns, *groups[0].first.evals.columns}
    own = set(history.summary["metrics"])  # type: ignore[call-overload]
    assert plain | (tables | frames) - own <= TAKEN
    assert {*MetricSpec().columns} <= TAKEN


def make_metric(name: str) -> Callable[..., Tensor]:
    def metric(outputs: Tensor, labels: Tensor) -> Tensor:
        return labels

    metric.__name__ = name
    return metric


@pytest.mark.parametrize(
    ("metrics", "name"),
    [
        ([make_metric("loss")], "loss"),
        ([make_metric("a"), make_metric("a")], "name a"),
        ([Top(1, "top-1")], "top-1"),
        ([Top(1, "class")], "class"),
        ([lambda outputs, labels: labels], "'<lambda>'"),
        ([3], "got 3"),
        (["top3"], "got 'top3'"),
        (["absent_ext:top3"], "got 'absent_ext:top3'"),
        ([fl.Metric], "the class Metric"),
    ],
)
def test_metric_of_a_wrong_type_or_with_a_reserved_name_is_refused(metrics: list[object], name: str) -> None:
    with refuses("metrics", name):
        make_metrics(metrics)


def test_metric_with_an_unknown_direction_is_refused() -> None:
    sideways = make_metric("mine")
    sideways.better = "left"  # type: ignore[attr-defined]
    with refuses("metrics.better", "mine", got="left"):
        make_metrics([sideways])


def squeezed(outputs: Tensor, labels: Tensor) -> Tensor:
    return outputs.max(1, keepdim=True).values.squeeze()


@pytest.mark.parametrize(
    ("function", "name"),
    [
        (lambda outputs, labels: outputs, "float32 [32, 10]"),
        (lambda outputs, labels: outputs.mean(), "float32 []"),
        (lambda outputs, labels: 0.5, "got 0.5"),
        (lambda outputs, labels: outputs[:, 0] / 0, "not finite"),
        (lambda outputs, labels: outputs[:, 0].to(torch.complex64), "complex64 [32]"),
        (squeezed, "batch of 1"),
    ],
)
def test_metric_with_a_wrong_result_is_refused_before_the_start(function: Any, name: str, tmp_path: Path) -> None:
    function.__name__ = "mine"
    with refuses("metrics", "mine", name):
        fl.run(fl.Experiment(**SMALL, metrics=(function,), out=tmp_path / "run"))
    assert not (tmp_path / "run").exists()


def failing(outputs: Tensor, labels: Tensor) -> Tensor:
    raise KeyError("teacher")


def test_error_of_a_failing_metric_names_the_metric(tmp_path: Path) -> None:
    with refuses("metrics", "failing (test_own_metric.py, line ", "KeyError: 'teacher'"):
        fl.run(fl.Experiment(**SMALL, metrics=(failing,), out=tmp_path / "run"))


def test_log_has_plain_numbers_for_metrics(history: History) -> None:
    lines = (history.directory / "events.jsonl").read_text().splitlines()
    values = [json.loads(line)["top2"] for line in lines if '"eval"' in line]
    assert all(isinstance(value, float) for value in values)
    assert metrics.exact_mean(np.array([1.0, math.inf])) == math.inf
    assert math.isnan(metrics.exact_mean(np.array([math.inf, -math.inf])))
