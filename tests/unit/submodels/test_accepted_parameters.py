"""Modules whose tensors cannot be trained: one sentence names the first such tensor."""

from collections.abc import Callable

import pytest
import torch
from torch import nn

from fedraa.submodels import trace


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
    ("make", "said"),
    [
        (on_meta, "'0.weight' is on the meta device"),
        (lambda: with_second(nn.Linear(3, 2, device="meta")), "'2.weight' is on the meta device"),
        (lambda: with_buffer(torch.zeros(2, device="meta")), "'kept' is on the meta device"),
        (lambda: with_second(nn.LazyLinear(2)), "'2.weight' has no shape yet"),
        (lambda: with_second(nn.Linear(3, 2).half()), "'2.weight' is torch.float16"),
        (lambda: with_parameter(torch.ones(2, dtype=torch.complex64)), "'p' is torch.complex64"),
        (lambda: with_parameter(torch.eye(2).to_sparse()), "'p' is torch.sparse_coo"),
        (lambda: with_value(float("nan")), "'2.bias' begins with values that are not finite"),
        (lambda: with_value(float("inf")), "'2.bias' begins with values that are not finite"),
    ],
)
def test_tensors_that_cannot_be_trained_are_named(make: Callable[[], nn.Module], said: str) -> None:
    with pytest.raises(ValueError, match=said):
        trace(make(), torch.ones(2, 4))


def test_infinities_that_are_not_trained_are_let_through() -> None:
    assert trace(with_buffer(torch.tensor([-torch.inf, 0.0])), torch.ones(2, 4)).groups
