"""Trials on a Ray cluster have the results of trials in this process."""

from pathlib import Path
from typing import Any

import pytest
from refusals import refuses

import fedraa as fl

pytestmark = [pytest.mark.cluster, pytest.mark.slow]

SMALL: dict[str, Any] = {"clients": 2, "hidden": (4,), "local_steps": 2, "rounds": 2, "trials": 3}


@pytest.mark.usefixtures("cluster")
def test_sequential_trials_on_a_cluster_equal_local_trials(tmp_path: Path) -> None:
    space = {"lr": "0.01:0.1:log"}
    here = fl.tune(["fedavg", "fedprox"], space, out=tmp_path / "here", **SMALL)
    there = fl.tune(["fedavg", "fedprox"], space, out=tmp_path / "there", address="auto", **SMALL)
    assert there.file.read_text() == here.file.read_text()
    assert there.table.equals(here.table)


@pytest.mark.usefixtures("cluster")
def test_tuning_on_a_cluster_reports_a_missing_dataset_and_failed_trials(tmp_path: Path) -> None:
    given = {**SMALL, "dataset": str(tmp_path / "d.npz")}
    with pytest.raises(ValueError, match=r"^dataset .*d.npz"):
        fl.tune(["fedavg"], {"lr": [0.1, 0.2]}, out=tmp_path / "tune", address="auto", jobs=2, **given)
    rates = {"lr": [1e30, 1e31]}
    with refuses("fedavg"):
        fl.tune(["fedavg"], rates, out=tmp_path / "tune", address="auto", jobs=2, on_bad_client="stop", **SMALL)
