"""Cuts of whole models: the project's own, and all of torchvision's classifiers."""

import numpy as np
import pytest
import torch

from benchmarks.system.cut_check import check_cut, grouped_share, random_cut
from benchmarks.system.cut_models import survey_model
from benchmarks.system.cut_zoo import build_zoo_model, list_models
from fedraa.models.build import MODELS, build_model
from fedraa.submodels import Traced, measure_cost
from fedraa.submodels.tracing.trace import trace_module

LIGHT = ("mnasnet0_5", "mobilenet_v3_small", "regnet_y_400mf", "shufflenet_v2_x0_5", "squeezenet1_1")


# A cut of a large model takes seconds.
NUMBERS_OF_CUTS = [1, pytest.param(3, marks=pytest.mark.slow)]


def check_cuts(traced: Traced, example: torch.Tensor, number_of_cuts: int) -> None:
    rng = np.random.default_rng(0)
    full = measure_cost(traced, traced.full(), example)
    for seed in range(number_of_cuts):
        indices = random_cut(traced, rng)
        check_cut(traced, example, indices, seed)
        cost = measure_cost(traced, indices, example)
        assert cost.params == len(traced.flat_index(indices)) < full.params
        assert cost.bytes < full.bytes
        assert cost.flops < full.flops


@pytest.mark.parametrize("number_of_cuts", NUMBERS_OF_CUTS)
@pytest.mark.parametrize("name", MODELS)
def test_our_models(name: str, number_of_cuts: int) -> None:
    example = torch.randint(0, 10_000, (4, 20)) if name == "fasttext" else torch.randn(2, 3, 16, 16)
    traced = trace_module(build_model(name, example, classes=10), example)
    check_cuts(traced, example, number_of_cuts)
    # a transformer's stream, normalised as a whole, stays: patches, positions, norms and head
    assert grouped_share(traced) > (0.85 if name.startswith("vit") else 0.99)


@pytest.mark.parametrize("number_of_cuts", NUMBERS_OF_CUTS)
@pytest.mark.parametrize("name", LIGHT)
def test_some_of_torchvision(name: str, number_of_cuts: int) -> None:
    module, example = build_zoo_model(f"torchvision:{name}")
    check_cuts(trace_module(module, example), example, number_of_cuts)


@pytest.mark.slow
def test_all_of_torchvision() -> None:
    lines = [survey_model(f"torchvision:{name}") for name in list_models("torchvision")]
    assert len(lines) >= 78
    assert [line for line in lines if line["verdict"] != "cut"] == []


@pytest.mark.parametrize("name", ["bert", "mixtral", "t5"])
def test_some_of_transformers(name: str) -> None:
    pytest.importorskip("transformers", reason="in the extra zoo")
    line = survey_model(f"transformers:{name}")
    assert line["verdict"] == "cut", line
    assert float(str(line["share_in_groups"])) > 0.85
