"""Small modules and inputs for the tests of cuts, and the check of every case."""

from collections.abc import Callable

import numpy as np
import torch
from ray import cloudpickle
from torch import Tensor, nn

from benchmarks.system.cut_check import check_cut, random_cut
from fedraa.submodels import Traced, drop_weights, load_parameters
from fedraa.submodels.tracing.trace import trace_module

Case = tuple[nn.Module, Tensor, list[int]]

IMAGE = torch.randn(4, 3, 8, 8)
VECTOR = torch.randn(4, 6)
SEQUENCE = torch.randn(4, 5, 6)
TOKENS = torch.randint(0, 20, (4, 7))


class Net(nn.Module):
    """A module that calls a function with its layers and parameters and with a batch."""

    def __init__(self, call: Callable[..., Tensor], **parts: nn.Module | Tensor) -> None:
        super().__init__()
        self.call = call
        for name, part in parts.items():
            setattr(self, name, part if isinstance(part, nn.Module) else nn.Parameter(part))

    def forward(self, x: Tensor) -> Tensor:
        return self.call(self, x)


class Calls(nn.Module):
    """Named layers, and a function that combines them."""

    def __init__(self, forward: Callable[[nn.ModuleDict, Tensor], object], **layers: nn.Module) -> None:
        super().__init__()
        self.layers = nn.ModuleDict(layers)
        self.call = forward

    def forward(self, x: Tensor) -> object:
        return self.call(self.layers, x)


class Parameter(nn.Module):
    def __init__(self, *shape: int) -> None:
        super().__init__()
        self.value = nn.Parameter(torch.randn(shape))


def conv(inputs: int, outputs: int, **options: int) -> nn.Conv2d:
    return nn.Conv2d(inputs, outputs, 3, padding=1, **options)


def head(channels: int) -> nn.Sequential:
    return nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(channels, 3))


def head_of(width: int) -> nn.Sequential:
    return nn.Sequential(nn.Linear(width, 4), nn.ReLU(), nn.Linear(4, 3))


def check_case(module: nn.Module, example: Tensor, sizes: list[int]) -> None:
    """Check that a module has groups of these sizes, and that three random cuts compute the right outputs."""
    torch.manual_seed(0)
    traced = trace_module(module, example)
    assert [group.size for group in traced.groups] == sizes
    rng = np.random.default_rng(0)
    for seed in range(3 if sizes else 0):
        check_cut(traced, example, random_cut(traced, rng), seed)


def loaded(traced: Traced, theta: np.ndarray, indices: tuple[np.ndarray, ...]) -> nn.Module:
    """Return the module that a worker trains, made from widths and weights only."""
    traced = cloudpickle.loads(cloudpickle.dumps(traced))
    drop_weights(traced.module)
    module = traced.make_skeleton(traced.widths(indices))
    load_parameters(module, theta[traced.flat_index(indices)])
    return module
