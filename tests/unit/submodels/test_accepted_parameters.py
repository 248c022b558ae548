"""Modules with an untrainable tensor are refused, and the error names the first one."""

from collections.abc import Callable

import pytest
import torch
from refusals import refuses
from torch import nn

from fedraa.submodels import trace_module


def net() -> nn.Sequential:
    return nn.Sequential(nn.Linear(4, 3), nn.ReLU(), nn.Linear(3, 2))


def with_second(layer: nn.Module) -> nn.Module:
    module = net()
    module[2] = layer
    return module


def on_meta() -> nn.Module:
    with torch.device("meta"):
        return net()


def with_buffer(values: torch.Tensor) -> nn.Module:
    module = net()
    module.register_buffer("kept", values)
    return module


def with_value(value: float) -> nn.Module:
    module = net()
    nn.init.constant_(module[2].bias, value)
    return module


def with_parameter(values: torch.Tensor) -> nn.Module:
    module = net()
    module.register_parameter("p", nn.Parameter(values))
    return module


@pytest.mark.parametrize(
    ("make", "name", "reason"),
    [
        (on_meta, "'0.weight'", "meta"),
        (lambda: with_second(nn.Linear(3, 2, device="meta")), "'2.weight'", "meta"),
        (lambda: with_buffer(torch.zeros(2, device="meta")), "'kept'", "meta"),
        (lambda: with_second(nn.LazyLinear(2)), "'2.weight'", "shape"),
        (lambda: with_second(nn.Linear(3, 2).half()), "'2.weight'", "float16"),
        (lambda: with_parameter(torch.ones(2, dtype=torch.complex64)), "'p'", "complex64"),
        (lambda: with_parameter(torch.eye(2).to_sparse()), "'p'", "sparse_coo"),
        (lambda: with_buffer(torch.eye(2).to_sparse()), "'kept'", "sparse_coo"),
        (lambda: with_buffer(torch.quantize_per_tensor(torch.ones(2), 0.1, 0, torch.qint8)), "'kept'", "qint8"),
        (lambda: with_value(float("nan")), "'2.bias'", "finite"),
        (lambda: with_value(float("inf")), "'2.bias'", "finite"),
    ],
)
def test_error_names_the_untrainable_tensor(make: Callable[[], nn.Module], name: str, reason: str) -> None:
    with refuses("module", name, reason):
        trace_module(make(), torch.ones(2, 4))


@pytest.mark.parametrize("shape", [(0, 3), (3, 0)])
def test_parameter_without_values_is_accepted(shape: tuple[int, int]) -> None:
    assert trace_module(with_parameter(torch.zeros(shape)), torch.ones(2, 4)).groups


def test_infinite_buffer_is_accepted() -> None:
    assert trace_module(with_buffer(torch.tensor([-torch.inf, 0.0])), torch.ones(2, 4)).groups
