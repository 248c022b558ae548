"""Fairness between clients: Jain's index and percentiles against values computed by hand."""

from pathlib import Path

import numpy as np
import pytest

import fedraa as fl
from fedraa.report import fairness
from fedraa.report.runs import load_groups
from fedraa.rundir.file_names import CLIENTS, SUMMARY

FLAGS = {"engine": "local", "clients": 4, "hidden": (8,), "local_steps": 1, "quiet": True}
ROWS = """step,t,client,name,samples,test_samples,accuracy,loss,updates,quarantined
0,0.0,0,,9,3,1.0,1.0,0,
12,1.0,0,,9,3,0.1,1.0,3,
12,1.0,1,ann,9,3,0.2,1.0,3,
12,1.0,2,,9,3,0.3,1.0,3,
12,1.0,3,,9,0,,,3,
"""


@pytest.mark.parametrize(
    ("values", "index"),
    [
        ([0.7, 0.7, 0.7], 1.0),
        ([1.0, 0.0, 0.0, 0.0], 0.25),
        # (1 + 2 + 3)^2 / (3 * (1 + 4 + 9))
        ([1.0, 2.0, 3.0], 36 / 42),
        ([0.0, 0.0], None),
    ],
)
def test_jain_index_equals_its_formula(values: list[float], index: float | None) -> None:
    assert fairness.jain_index(np.array(values)) == pytest.approx(index)


def test_fairness_table_has_the_values_of_the_last_evaluation(tmp_path: Path) -> None:
    directory = tmp_path / "run"
    fl.run(fl.Experiment(method="fed-raa", updates=12, client_evals="final", out=directory, **FLAGS))
    assert fairness.fairness_tables(load_groups([directory]))[0].frame["clients"].tolist() == [4]
    (directory / CLIENTS).write_text(ROWS)
    # A run that has not ended has no digests.
    (directory / SUMMARY).unlink()
    [table] = fairness.fairness_tables(load_groups([directory]))
    row = table.frame.iloc[0]
    assert row["step"] == 12
    assert row["clients"] == 3
    assert row["Jain's index"] == pytest.approx(36 / 42)
    # Linear interpolation between 0.1, 0.2 and 0.3.
    percentiles = [row[f"{percent} %"] for percent in (5, 25, 50, 75, 95)]
    assert percentiles == pytest.approx([0.11, 0.15, 0.2, 0.25, 0.29])
    assert (row["worst client"], row["worst"], row["best client"], row["best"]) == ("0", 0.1, "2", 0.3)
    fl.report([directory], tmp_path / "report.html", theme="light")
    assert "Jain" in (tmp_path / "report.html").read_text()
    assert len(list((tmp_path / "report_files").glob("*-fairness.pdf"))) == 1


def test_worst_client_of_an_error_metric_has_the_largest_value(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    x, y = rng.normal(size=(80, 3)).astype(np.float32), rng.normal(size=(80, 1)).astype(np.float32)
    data = fl.Dataset("line", x[:60], y[:60], x[60:], y[60:], 0)
    experiment = fl.Experiment(**FLAGS, objective="regression", rounds=2, method="fedavg", client_evals="all")
    history = fl.run(experiment, dataset=data, out=tmp_path / "run")
    assert {"mse", "mae", "r2", "loss"} <= set(history.clients.columns)
    last = history.clients[history.clients["step"] == 2]
    row = fairness.fairness_tables(load_groups([history.directory]))[0].frame.iloc[0]
    main = history.metric_spec.main
    expected = last[main].max() if history.metric_spec.better(main) == "min" else last[main].min()
    assert row["worst"] == pytest.approx(expected)
    assert row["worst"] == pytest.approx(history.evals["client_worst"].iloc[-1])


def test_report_without_client_results_has_no_fairness_table(tmp_path: Path) -> None:
    fl.run(fl.Experiment(method="fed-raa", updates=4, out=tmp_path / "run", **FLAGS))
    assert fairness.fairness_tables(load_groups([tmp_path / "run"])) == []
