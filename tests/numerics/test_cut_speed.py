"""Tracing, cutting and indexing make few enough calls for every task of many clients.

Calls are counted, because a time would depend on the machine. The benchmark `cut_models` measures the time of tracing.
"""

import pytest
import torch
from calls import count_calls

from benchmarks.system.cut_zoo import build_zoo_model
from fedraa.models.build import build_model
from fedraa.submodels import take_prefix
from fedraa.submodels.tracing.trace import trace_module


def test_tracing_and_cutting_resnet50_make_few_calls() -> None:
    module, example = build_zoo_model("torchvision:resnet50")
    # The counts are 1.7 million and 115 thousand. A cut takes about 25 ms.
    assert count_calls(lambda: trace_module(module, example)) < 3_000_000
    traced = trace_module(module, example)
    assert count_calls(lambda: traced.cut(take_prefix(traced, 0.5))) < 200_000


@pytest.mark.parametrize(("name", "limit"), [("mlp", 50), ("resnet18", 400)])
def test_index_sets_of_many_clients_make_few_calls(name: str, limit: int) -> None:
    example = torch.randn(2, 3, 32, 32)
    traced = trace_module(build_model(name, example, classes=10), example)
    capacities = [1.0, 0.5, 0.25, 0.125, 0.0625] * 200
    # The mean includes the first index set of each capacity, which makes about ten times as many calls.
    calls = count_calls(lambda: [traced.flat_index(take_prefix(traced, capacity)) for capacity in capacities])
    assert calls < limit * len(capacities)
