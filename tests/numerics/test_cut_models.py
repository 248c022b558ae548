"""Cuts of whole models: the project's own, and all of torchvision's classifiers."""

import numpy as np
import pytest
import torch

from benchmarks.system.cut_models import SIDE, build, check, names, random_cut, share
from fedraa.models.build import MODELS, build_model
from fedraa.submodels import Traced, measure
from fedraa.submodels.tracing.trace import trace

LIGHT = ("mnasnet0_5", "mobilenet_v3_small", "regnet_y_400mf", "shufflenet_v2_x0_5", "squeezenet1_1")


def check_three_cuts(traced: Traced, example: torch.Tensor) -> None:
    rng = np.random.default_rng(0)
    full = measure(traced, traced.full(), example)
    for seed in range(3):
        indices = random_cut(traced, rng)
        check(traced, example, indices, seed)
        cost = measure(traced, indices, example)
        assert cost.params == len(traced.flat_index(indices)) < full.params
        assert cost.bytes < full.bytes
        assert cost.flops < full.flops


@pytest.mark.parametrize("name", MODELS)
def test_our_models(name: str) -> None:
    example = torch.randint(0, 10_000, (4, 20)) if name == "fasttext" else torch.randn(2, 3, 16, 16)
    traced = trace(build_model(name, example, classes=10), example)
    check_three_cuts(traced, example)
    # a transformer's stream, normalised as a whole, stays: patches, positions, norms and head
    assert share(traced) > (0.85 if name.startswith("vit") else 0.99)


@pytest.mark.parametrize("name", LIGHT)
def test_some_of_torchvision(name: str) -> None:
    example = torch.randn(2, 3, SIDE, SIDE)
    torch.manual_seed(0)
    check_three_cuts(trace(build(name), example), example)


@pytest.mark.slow
def test_all_of_torchvision() -> None:
    """At least 95 % of the models that take such small images; what fails is named."""
    example = torch.randn(2, 3, SIDE, SIDE)
    failed, total = [], 0
    for name, reason in names():
        if reason:
            continue
        total += 1
        torch.manual_seed(0)
        try:
            check_three_cuts(trace(build(name), example), example)
        except (AssertionError, ValueError) as error:
            failed.append(f"{name}: {error}")
    assert total > 70
    assert len(failed) <= 0.05 * total, failed
