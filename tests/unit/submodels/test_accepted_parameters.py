"""Modules with an untrainable tensor are refused, and the error names the first one."""

from collections.abc import Callable

import pytest
import torch
from refusals import refuses
from torch import nn

from fedraa.submodels import trace_module
from fedraa.submodels.tracing.accept import check_kinds


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


def with_tied_values() -> nn.Module:
    module = nn.Sequential(nn.Linear(3, 3), nn.Linear(3, 3))
    module[1].weight.data = module[0].weight.data.T
    return module


def with_parameter_of_a_parameter() -> nn.Module:
    module = net()
    module.register_parameter("p", nn.Parameter(module[0].weight[1:]))
    return module


def with_view(module: nn.Sequential) -> nn.Module:
    module.register_buffer("view", module[0].weight.detach()[0])
    return module


def with_hook(register: str) -> nn.Module:
    module = net()
    getattr(module[0].weight, register)(lambda gradient: None)
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
        (with_tied_values, "'1.weight'", "memory"),
        (with_parameter_of_a_parameter, "'p'", "memory"),
        (lambda: with_view(net()), "'view'", "memory"),
        (lambda: with_hook("register_hook"), "'0.weight'", "hook"),
        (lambda: with_hook("register_post_accumulate_grad_hook"), "'0.weight'", "hook"),
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


def test_disjoint_parts_of_one_tensor_are_accepted() -> None:
    both = torch.randn(3, 8)
    module = nn.Sequential(nn.Linear(4, 3), nn.ReLU(), nn.Linear(4, 3))
    module[0].weight, module[2].weight = nn.Parameter(both[:, ::2]), nn.Parameter(both[:, 1::2])
    check_kinds(module)


def test_parameter_with_two_names_or_a_removed_hook_is_accepted() -> None:
    module = nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 4))
    module[2].weight = module[0].weight
    module[0].weight.register_hook(lambda gradient: None).remove()
    assert trace_module(module, torch.ones(2, 4)).size == 24
