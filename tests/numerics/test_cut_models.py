"""Cuts of whole models: the built-in models, all of torchvision's classifiers, and some models of transformers."""

from typing import Any

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


# Large models whose layers another model of the fast tests also has.
VARIANTS = ("resnet18-bn", "resnet18-scaler", "vit", "mnasnet0_5")


def models_and_cuts(names: tuple[str, ...]) -> list[Any]:
    """Return each model with 1 cut, and with 3 cuts in a slow test: a cut of a large model takes seconds."""
    once = [pytest.param(name, 1, marks=[pytest.mark.slow] if name in VARIANTS else []) for name in names]
    return once + [pytest.param(name, 3, marks=pytest.mark.slow) for name in names]


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


@pytest.mark.parametrize(("name", "number_of_cuts"), models_and_cuts(MODELS))
def test_cuts_of_built_in_models_are_correct_and_cheaper(name: str, number_of_cuts: int) -> None:
    example = torch.randint(0, 10_000, (4, 20)) if name == "fasttext" else torch.randn(2, 3, 16, 16)
    traced = trace_module(build_model(name, example, classes=10), example)
    check_cuts(traced, example, number_of_cuts)
    # The residual stream of a transformer is normalised as a whole. So its patches, positions, norms and head stay
    # whole.
    assert grouped_share(traced) > (0.85 if name.startswith("vit") else 0.99)


@pytest.mark.parametrize(("name", "number_of_cuts"), models_and_cuts(LIGHT))
def test_cuts_of_light_torchvision_models_are_correct_and_cheaper(name: str, number_of_cuts: int) -> None:
    module, example = build_zoo_model(f"torchvision:{name}")
    check_cuts(trace_module(module, example), example, number_of_cuts)


@pytest.mark.slow
def test_every_torchvision_classifier_can_be_cut() -> None:
    lines = [survey_model(f"torchvision:{name}") for name in list_models("torchvision")]
    assert len(lines) >= 78
    assert [line for line in lines if line["verdict"] != "cut"] == []


@pytest.mark.parametrize("name", ["bert", "mixtral", "t5"])
def test_transformers_models_can_be_cut(name: str) -> None:
    pytest.importorskip("transformers", reason="in the extra zoo")
    line = survey_model(f"transformers:{name}")
    assert line["verdict"] == "cut", line
    assert float(str(line["share_in_groups"])) > 0.85
