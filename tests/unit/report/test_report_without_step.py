"""The report of runs that ended before their first step."""

import warnings
from pathlib import Path

import pandas as pd
import pytest

import fedraa as fl
from fedraa.report.runs import load_groups
from fedraa.report.single import run_pictures


def run_without_step(out: Path, method: str, **fields: object) -> None:
    fl.run(method=method, engine="local", clients=4, hidden=8, local_steps=2, quiet=True, out=out, **fields)


@pytest.mark.parametrize("budget", [{"time": 0.001}, {"time": 5, "target_accuracy": 0.01}])
def test_report_without_step_marks_the_runs(tmp_path: Path, budget: dict[str, float]) -> None:
    for method in ("fed-raa", "fedavg"):
        run_without_step(tmp_path / "runs" / method, method, **budget)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        files = fl.report([tmp_path / "runs"], tmp_path / "both.html", theme="light")
        fl.report([tmp_path / "runs" / "fed-raa"], tmp_path / "one.html", theme="light")
    table = pd.read_csv(files / "runs.csv")
    assert sorted(table["method"]) == ["fed-raa (no step was finished)", "fedavg (no step was finished)"]
    assert "fed-raa (no step was finished)" in (tmp_path / "one.html").read_text()
    names = [picture.name for picture in run_pictures(load_groups([tmp_path / "runs" / "fed-raa"])[0].first, "a")]
    assert names == ["a-timeline", "a-time-use", "a-clients"]
