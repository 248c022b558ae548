"""Metrics that studies compute from a run's directory."""

import json
import math
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pandas as pd
import pytest

from benchmarks.studies.metrics import LATE_STD, after_rounds, at_own_time, read_evaluations, to_target
from fedraa.config.experiment import Experiment
from fedraa.rundir.file_names import CONFIG, EVALS, EVENTS
from fedraa.rundir.history import History


def test_cost_is_counted_until_the_evaluation_that_reaches_the_target(tmp_path: Path) -> None:
    lines = [
        {"kind": "eval", "step": 0, "t": 0.0, "accuracy": 0.1},
        {"kind": "dispatch", "bytes_down": 1_000_000},
        {"kind": "dispatch", "bytes_down": 2_000_000},
        {"kind": "commit", "bytes_up": 500_000, "flops": 3e9, "staleness": 0},
        {"kind": "eval", "step": 1, "t": 1.5, "accuracy": 0.6},
        {"kind": "commit", "bytes_up": 500_000, "flops": 4e9, "staleness": 1},
        {"kind": "eval", "step": 2, "t": 2.5, "accuracy": 0.5},
    ]
    text = "\n".join(json.dumps({"seq": n, "t": 0.0, "wall": 0.0, **line}) for n, line in enumerate(lines))
    (tmp_path / EVENTS).write_text(text + "\n")
    (tmp_path / CONFIG).touch()
    (tmp_path / EVALS).touch()
    history = History(tmp_path)
    assert read_evaluations(history)["bytes"].tolist() == [0, 3.5e6, 4e6]
    assert to_target(0.55, "bytes").of(history) == 3.5
    assert to_target(0.55, "flops").of(history) == 3
    assert to_target(0.55, "t").of(history) == 1.5
    assert to_target(0.7, "step").of(history) == float("inf")


def test_accuracy_is_read_after_rounds_and_at_a_multiple_of_the_target_time(tmp_path: Path) -> None:
    """The target .5 is reached at time 2, so three times its own time is 6."""
    evals = [(0, 0.0, 0.1), (5, 2.0, 0.5), (10, 5.0, 0.6), (15, 7.0, 0.7)]
    lines = [
        {"seq": n, "wall": 0.0, "kind": "eval", "step": step, "t": t, "accuracy": accuracy}
        for n, (step, t, accuracy) in enumerate(evals)
    ]
    (tmp_path / EVENTS).write_text("".join(json.dumps(line) + "\n" for line in lines))
    history: Any = SimpleNamespace(directory=tmp_path, experiment=Experiment(dataset="digits"))
    assert after_rounds(10).of(history) == pytest.approx(60)
    assert after_rounds(14).of(history) == pytest.approx(60)
    assert at_own_time({"digits": 0.5}, 3).of(history) == pytest.approx(60)
    assert at_own_time({"digits": 0.5}, 3.5).of(history) == pytest.approx(70)
    # It ended too early, or never reached the target.
    assert math.isnan(at_own_time({"digits": 0.5}, 4).of(history))
    assert math.isnan(at_own_time({"digits": 0.9}, 3).of(history))


def test_late_deviation_is_a_mean_over_the_last_quarter_of_the_evaluations() -> None:
    """A quarter of five evaluations is rounded up to two, and of one evaluation to one."""
    history: Any = SimpleNamespace(evals=pd.DataFrame({"client_std": [0.9, 0.5, 0.4, 0.1, 0.3]}))
    assert LATE_STD.of(history) == pytest.approx(20)
    alone: Any = SimpleNamespace(evals=pd.DataFrame({"client_std": [0.3]}))
    assert LATE_STD.of(alone) == pytest.approx(30)
