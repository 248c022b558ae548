"""Targets for metrics that a run does not have are refused before anything is written."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from refusals import refuses

import fedraa as fl

X = np.random.default_rng(0).normal(size=(40, 5)).astype(np.float32)
NUMBERS = fl.Dataset("numbers", X, X[:, 0], X[:10], X[:10, 0], classes=1)
SMALL: dict[str, Any] = {
    "dataset": NUMBERS, "objective": "regression", "method": "fedavg", "rounds": 1, "clients": 2, "local_epochs": 1,
    "hidden": (4,), "engine": "local", "quiet": True,
}  # fmt: skip


@pytest.mark.parametrize(
    ("fields", "field"),
    [
        ({"target_accuracy": 0.9}, "target_accuracy"),
        ({"target": "accuracy:0.9"}, "target"),
        ({"target": "foo:1"}, "target"),
        ({"callbacks": ["early-stopping(metric='accuracy')"]}, "callbacks.metric"),
    ],
)
def test_target_on_a_metric_that_the_run_lacks_is_refused(fields: dict[str, Any], field: str, tmp_path: Path) -> None:
    with refuses(field, "mse, mae, r2, loss"):
        fl.run(out=tmp_path / "run", **SMALL, **fields)
    assert not (tmp_path / "run").exists()


def test_resume_refuses_a_target_accuracy_for_a_run_without_accuracy(tmp_path: Path) -> None:
    fl.run(out=tmp_path / "run", **SMALL)
    with refuses("target_accuracy", "--target METRIC:VALUE", got=0.9):
        fl.resume(tmp_path / "run", dataset=NUMBERS, target_accuracy=0.9)
