"""Tracing, cutting and indexing are fast enough for every task of a large fleet."""

import time
from collections.abc import Callable

import pytest
import torch

from benchmarks.system.cut_zoo import build_zoo_model
from fedraa.models.build import build_model
from fedraa.submodels import take_prefix
from fedraa.submodels.tracing.trace import trace_module


def seconds(call: Callable[[], object], times: int = 3) -> float:
    """Return the processor seconds of the fastest of several calls, because other programs may run."""
    taken = []
    for _ in range(times):
        start = time.process_time()
        call()
        taken.append(time.process_time() - start)
    return min(taken)


def test_resnet50() -> None:
    module, example = build_zoo_model("torchvision:resnet50")
    start = time.process_time()
    traced = trace_module(module, example)
    assert time.process_time() - start < 10
    assert seconds(lambda: traced.cut(take_prefix(traced, 0.5))) < 0.05


@pytest.mark.parametrize("name", ["mlp", "resnet18"])
def test_index_sets_of_a_fleet(name: str) -> None:
    example = torch.randn(2, 3, 32, 32)
    traced = trace_module(build_model(name, example, classes=10), example)
    capacities = [1.0, 0.5, 0.25, 0.125, 0.0625] * 200
    assert seconds(lambda: [traced.flat_index(take_prefix(traced, r)) for r in capacities], times=1) < 1
