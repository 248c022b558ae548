"""Element-wise masks."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from refusals import refuses
from torch import nn
from torch.nn.utils import parametrizations

import fedraa as fl
from fedraa.submodels.masks import random_parts
from fedraa.submodels.tracing.trace import trace_module

# The sizes of the parameters are 12, 3, 6 and 2.
TRACED = trace_module(nn.Sequential(nn.Linear(4, 3), nn.ReLU(), nn.Linear(3, 2)), torch.zeros(2, 4))


def test_random_parts_divide_the_named_parameters() -> None:
    masks = random_parts(TRACED, 4, ["0.weight", "2.weight"], np.random.default_rng(0))
    counts = np.sum(masks, axis=0)
    assert counts.tolist() == [1] * 12 + [4] * 3 + [1] * 6 + [4] * 2
    assert [int(mask.sum()) - 5 for mask in masks] == [5, 5, 4, 4]  # 18 elements in 4 parts
    again = random_parts(TRACED, 4, ["0.weight", "2.weight"], np.random.default_rng(1))
    assert any((a != b).any() for a, b in zip(masks, again, strict=True))


def test_layer_whose_inputs_are_cut_has_no_uncut_parameter_also_with_a_parametrized_weight() -> None:
    head = parametrizations.weight_norm(nn.Linear(6, 2))
    model = nn.Sequential(nn.Linear(4, 4), nn.LayerNorm(4), nn.Linear(4, 6), nn.ReLU(), head)
    traced = trace_module(model, torch.randn(2, 4)).match_groups(["2"])
    uncut = {name for name, place in traced.places.items() if traced.uncut_layers()[place].all()}
    assert uncut == {"0.weight", "0.bias", "1.weight", "1.bias"}
    assert traced.uncut_layers().sum() == 16 + 4 + 4 + 4


@pytest.mark.filterwarnings("ignore:.*weight_norm.* is deprecated:FutureWarning")
@pytest.mark.parametrize("norm", [parametrizations.weight_norm, nn.utils.weight_norm])
@pytest.mark.parametrize("method", ["prunefl", "oap", "ra-fed", "ram-fed-units", "subdismo", "fedgmr", "bernoulli"])
def test_method_whose_masks_set_weights_to_0_refuses_a_weight_norm(method: str, norm: Any, tmp_path: Path) -> None:
    """A row of zeros divided by its norm would be NaN. Methods that cut units keep all weights of the units."""
    model = nn.Sequential(nn.Flatten(), norm(nn.Linear(64, 16)), nn.ReLU(), nn.Linear(16, 10))
    with refuses("model", "'1'"):
        fl.run(method=method, model=model, engine="local", quiet=True, out=tmp_path / "run")
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("method", ["heterofl", "salf", "fedavg", "bernoulli-kernels"])
def test_method_that_sets_no_weight_to_0_trains_a_weight_norm(method: str, tmp_path: Path) -> None:
    model = nn.Sequential(nn.Flatten(), parametrizations.weight_norm(nn.Linear(64, 16)), nn.ReLU(), nn.Linear(16, 10))
    fields: dict[str, Any] = {"rounds": 1, "local_steps": 1, "clients": 4, "engine": "local", "quiet": True}
    assert fl.run(method=method, model=model, out=tmp_path / "run", **fields).summary["dropped"] == 0
