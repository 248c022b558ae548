"""Tensors along units that are not trained: they follow any index set, or their units stay whole."""

import copy
from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from cut_cases import loaded
from torch import Tensor, nn
from torch.nn.utils import parametrizations, prune

from benchmarks.system.cut_check import check_cut, random_cut
from fedraa.submodels import flatten_parameters, trace_module

VECTOR = torch.randn(4, 6)
IMAGE = torch.randn(4, 3, 8, 8)
TOKENS = torch.randint(0, 20, (4, 7))
GENERATOR = torch.Generator().manual_seed(0)


class Calls(nn.Module):
    """Layers and buffers, joined by a function."""

    def __init__(self, forward: Callable[["Calls"], Callable[[Tensor], object]], **parts: nn.Module | Tensor) -> None:
        super().__init__()
        for name, part in parts.items():
            if isinstance(part, Tensor):
                self.register_buffer(name, part)
            else:
                self.add_module(name, part)
        self.call = forward

    def forward(self, x: Tensor) -> object:
        return self.call(self)(x)


class FixedNorm(nn.BatchNorm1d):
    """Batch normalisation with fixed statistics."""

    def train(self, mode: bool = True) -> "FixedNorm":
        super().train(False)
        return self


class OwnNorm(nn.Module):
    """Batch normalisation in plain code."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.register_buffer("mean", torch.zeros(width))

    def forward(self, x: Tensor) -> Tensor:
        if self.training:
            self.mean.mul_(0.9).add_(0.1 * x.mean(0).detach())
        return x - (x.mean(0) if self.training else self.mean)


def random(*shape: int) -> Tensor:
    return torch.randn(shape, generator=GENERATOR)


def fixed_norm(spread: float) -> nn.Module:
    norm = FixedNorm(8)
    norm.running_mean += spread * random(8)
    return nn.Sequential(nn.Linear(6, 8), norm, nn.ReLU(), nn.Linear(8, 3))


def moved_norm() -> nn.Module:
    module = nn.Sequential(nn.Linear(6, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 3))
    for _ in range(3):
        module(torch.randn(20, 6))
    return module


def layer_by(change: Callable[[nn.Module], nn.Module]) -> nn.Module:
    """Three layers, the second with a computed weight."""
    layers = nn.Linear(6, 8), change(nn.Linear(8, 7)), nn.Linear(7, 5), nn.Linear(5, 3)
    return nn.Sequential(layers[0], nn.ReLU(), layers[1], nn.ReLU(), layers[2], nn.ReLU(), layers[3])


def tail(width: int) -> nn.Module:
    return nn.Sequential(nn.Linear(width, 5), nn.ReLU(), nn.Linear(5, 3))


# Each case has a module, an example and the sizes of the groups.
CASES: dict[str, tuple[nn.Module, Tensor, list[int]]] = {
    "random features": (Calls(lambda m: lambda x: m.b(F.linear(x, m.w)), w=random(9, 6), b=tail(9)), VECTOR, [5]),
    "random features behind units": (
        Calls(lambda m: lambda x: m.b(F.linear(m.a(x), m.w)), a=nn.Linear(6, 8), w=random(9, 8), b=tail(9)),
        VECTOR,
        [5],
    ),
    "fixed filters": (
        Calls(
            lambda m: lambda x: m.b(F.conv2d(m.a(x), m.w, groups=8).mean((2, 3))),
            a=nn.Conv2d(3, 8, 3),
            w=random(8, 1, 3, 3),
            b=tail(8),
        ),
        IMAGE,
        [5],
    ),
    "the same filter for all channels": (
        Calls(
            lambda m: lambda x: m.b(F.conv2d(m.a(x), m.w, groups=m.w.size(0)).mean((2, 3))),
            a=nn.Conv2d(3, 8, 3),
            w=random(1, 1, 3, 3).repeat(8, 1, 1, 1),
            b=tail(8),
        ),
        IMAGE,
        [8, 5],
    ),
    "a fixed embedding": (
        Calls(lambda m: lambda x: m.b(F.embedding(x, m.w).mean(1)), w=random(20, 9), b=tail(9)),
        TOKENS,
        [5],
    ),
    "fixed statistics": (fixed_norm(1.0), VECTOR, []),
    "equal fixed statistics": (fixed_norm(0.0), VECTOR, [8]),
    "running statistics": (moved_norm(), VECTOR, [8]),
    "running statistics in plain code": (
        nn.Sequential(nn.Linear(6, 8), OwnNorm(8), nn.ReLU(), nn.Linear(8, 3)),
        VECTOR,
        [8],
    ),
    "a buffer is added": (
        Calls(lambda m: lambda x: m.b(m.a(x) + m.w), a=nn.Linear(6, 8), w=random(8), b=tail(8)),
        VECTOR,
        [5],
    ),
    "a buffer of ones is multiplied": (
        Calls(lambda m: lambda x: m.b(m.a(x) * m.w), a=nn.Linear(6, 8), w=torch.ones(8), b=tail(8)),
        VECTOR,
        [8, 5],
    ),
    "a layer's buffer is also read elsewhere": (
        Calls(
            lambda m: lambda x: m.b(F.linear(m.a(x), m.w)) + m.w.cumprod(1).sum(),
            a=nn.Linear(6, 8),
            w=torch.ones(9, 8),
            b=tail(9),
        ),
        VECTOR,
        [5],
    ),
    "a buffer that branches": (
        Calls(lambda m: lambda x: m.b(x if m.w[:1].any() else -x), w=torch.ones(4), b=tail(6)),
        VECTOR,
        [5],
    ),
    "spectral norm": (layer_by(parametrizations.spectral_norm), VECTOR, [5]),
    "old spectral norm": (layer_by(nn.utils.spectral_norm), VECTOR, [5]),
    "weight norm": (layer_by(parametrizations.weight_norm), VECTOR, [8, 7, 5]),
    "old weight norm": (layer_by(nn.utils.weight_norm), VECTOR, [8, 7, 5]),
    "pruning": (layer_by(lambda layer: prune.l1_unstructured(layer, "weight", 0.5)), VECTOR, [5]),
}


@pytest.mark.filterwarnings("ignore::FutureWarning")
@pytest.mark.parametrize("name", CASES)
def test_skeleton_with_loaded_weights_equals_the_cut(name: str) -> None:
    module, example, sizes = CASES[name]
    traced = trace_module(module, example)
    assert [group.size for group in traced.groups] == sizes
    theta = flatten_parameters(traced.module)
    rng = np.random.default_rng(0)
    for seed in range(4):
        indices = random_cut(traced, rng)
        torch.manual_seed(0)
        expected = traced.cut(indices).train()(example)
        result = loaded(traced, theta, indices).train()(example)
        # Rounding depends on the memory layout.
        assert (result - expected).abs().max() <= 1e-5 * expected.abs().max()
        if sizes:
            check_cut(traced, example, indices, seed)


def test_cut_leaves_the_module_unchanged() -> None:
    traced = trace_module(layer_by(parametrizations.spectral_norm), VECTOR)
    before = copy.deepcopy(traced.module.state_dict())
    full = traced.cut(traced.full())
    for name, tensor in traced.module.state_dict().items():
        torch.testing.assert_close(tensor, before[name], rtol=0, atol=0)
    torch.testing.assert_close(full.eval()(VECTOR), traced.module.eval()(VECTOR), rtol=0, atol=0)


def test_uncut_reason_names_the_buffer_that_keeps_a_layer_whole() -> None:
    module, example, _ = CASES["fixed statistics"]
    assert "its units differ in the buffer 1.running_mean" in trace_module(module, example).uncut["0"]


@dataclass
class Output:
    logits: Tensor
    more: tuple[Tensor, ...] | None = None


class Pair(NamedTuple):
    logits: Tensor
    more: Tensor


class TwoHeads(nn.Module):
    def __init__(self, join: Callable[[Tensor, Tensor], object]) -> None:
        super().__init__()
        self.a, self.b, self.c, self.join = nn.Linear(6, 8), nn.Linear(8, 3), nn.Linear(8, 4), join

    def forward(self, x: Tensor) -> object:
        return self.join(self.b(y := self.a(x).relu()), self.c(y))


@pytest.mark.parametrize(
    "join",
    [
        lambda a, b: Output(a, (b,)),
        lambda a, b: {"logits": a, "more": [{"b": b}]},
        Pair,
        lambda a, b: [a, Output(b)],
    ],
)
def test_units_of_every_output_stay_whole(join: Callable[[Tensor, Tensor], object]) -> None:
    traced = trace_module(TwoHeads(join), VECTOR)
    assert [group.name for group in traced.groups] == ["a"]
    check_cut(traced, VECTOR, (np.array([1, 4, 5]),))


class Tiny(nn.Module):
    """A layer with a width in its code that shows only in its output, which is small."""

    def __init__(self, scale: float) -> None:
        super().__init__()
        self.a, self.b, self.scale = nn.Linear(6, 8), nn.Linear(8, 3), scale

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.a(x)
        return self.b(y) * (self.scale / y.shape[1])


@pytest.mark.parametrize("scale", [1.0, 1e-9])
def test_trial_detects_the_difference_of_a_small_output(scale: float) -> None:
    assert trace_module(Tiny(scale), VECTOR).groups == ()


class Lower(nn.Module):
    """Two layers, one in another precision."""

    def __init__(self, dtype: torch.dtype) -> None:
        super().__init__()
        self.a, self.b, self.dtype = nn.Linear(6, 8), nn.Linear(8, 3), dtype

    def forward(self, x: Tensor) -> Tensor:
        return self.b((self.a(x).to(self.dtype) * torch.ones((), dtype=self.dtype)).float())


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float64])
def test_module_in_another_precision_is_cut(dtype: torch.dtype) -> None:
    assert [group.size for group in trace_module(Lower(dtype), VECTOR).groups] == [8]


@pytest.mark.filterwarnings("error:Casting complex values")
def test_trial_keeps_the_imaginary_parts_of_buffers() -> None:
    """In double precision, code that reads the imaginary part still gets a complex number."""
    module = Calls(
        lambda m: lambda x: m.b(torch.exp(m.a(x) * m.turn).imag),
        a=nn.Linear(6, 8),
        b=nn.Linear(8, 3),
        turn=torch.tensor(1j),
    )
    traced = trace_module(module, VECTOR)
    assert [group.size for group in traced.groups] == [8]
