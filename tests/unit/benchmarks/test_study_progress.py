"""The progress that a study prints after its runs, while it measures them."""

from pathlib import Path

import pytest

from benchmarks.studies import commands
from benchmarks.studies.metrics import ACCURACY
from benchmarks.studies.study import Cell, Finished, Study, measure_runs
from fedraa.config.experiment import Experiment


def test_measurement_of_many_runs_prints_its_progress(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    cell = Cell("fedavg", Experiment(method="fedavg"))
    study = Study("s", "A study", [cell], (ACCURACY,), "fedavg")
    runs = [Finished(cell, seed, Path("missing"), "it failed") for seed in (0, 1, 2)]
    clock = iter((0.0, 1.0, 15.0, 15.0, 20.0))
    monkeypatch.setattr(commands.time, "monotonic", lambda: next(clock))
    assert len(measure_runs(study, runs, commands.MeasurementPrinter(len(runs)))) == 3
    assert capsys.readouterr().out == "1 of 3 runs measured\n"
