"""A run of a model with adapters has the same bits on both engines: workers hold its base, and tasks do not."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from execution import run_warm
from same_run import same
from torch import nn

import fedraa as fl

pytestmark = [pytest.mark.cluster, pytest.mark.usefixtures("cluster")]


@pytest.mark.parametrize(("method", "limit"), [("fed-raa", {"updates": 12}), ("flora", {"rounds": 3})])
def test_model_with_adapters_gives_the_same_run_on_ray(
    method: str, limit: dict[str, Any], warm_workers: tuple[Any, ...], tmp_path: Path
) -> None:
    rng = np.random.default_rng(0)
    x = rng.normal(size=(120, 12)).astype(np.float32)
    y = (x @ rng.normal(size=(12, 4))).argmax(1)
    data = fl.Dataset("made", x[:100], y[:100], x[100:], y[100:], 4)
    torch.manual_seed(0)
    model = fl.lora(nn.Sequential(nn.Linear(12, 40), nn.ReLU(), nn.Linear(40, 4)), 8, merge=method == "flora")
    common: dict[str, Any] = {"method": method, "clients": 4, "local_epochs": 1, **limit}
    here = fl.run(model=model, dataset=data, engine="local", out=tmp_path / "local", **common)
    there = run_warm(warm_workers, tmp_path / "ray", model=model, dataset=data, **common)
    same(there.directory, here)
    assert there.config["resolved"]["base"] == here.config["resolved"]["base"]
    assert "consistent" in fl.replay(there.directory)
