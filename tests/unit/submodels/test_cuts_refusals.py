"""Modules that cannot be traced or trained are refused with a short error. Layers that cannot be cut stay whole."""

import copy
from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from refusals import refuses
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from fedraa.submodels import trace_module

VECTOR = torch.randn(4, 6)


class Net(nn.Module):
    def __init__(self, forward: Callable[[nn.Module, Tensor], object] = lambda m, x: m.b(m.a(x).relu())) -> None:
        super().__init__()
        self.a, self.b, self.call = nn.Linear(6, 8), nn.Linear(8, 3), forward

    def forward(self, x: Tensor) -> object:
        return self.call(self, x)


class Spectrum(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.w = nn.Parameter(torch.randn(8, 6, dtype=torch.complex64))
        self.b = nn.Linear(8, 3)

    def forward(self, x: Tensor) -> Tensor:
        result: Tensor = self.b((x.to(self.w.dtype) @ self.w.mT).abs())
        return result


class Unregistered(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = [nn.Linear(6, 8)]
        self.b = nn.Linear(8, 3)

    def forward(self, x: Tensor) -> Tensor:
        result: Tensor = self.b(self.layers[0](x))
        return result


class Words(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = nn.Embedding(20, 8, sparse=True), nn.Linear(8, 3)

    def forward(self, x: Tensor) -> Tensor:
        result: Tensor = self.b(self.a(x.long().abs()).mean(1))
        return result


def closed() -> nn.Module:
    module = Net()
    first, second = module.a, module.b
    # Users replace methods like this.
    module.forward = lambda x: second(first(x))  # type: ignore[method-assign]
    return module


def bottomless() -> nn.Module:
    module = Net()
    module.state = (x for x in ())
    return module


CASES: dict[str, tuple[Callable[[], nn.Module], tuple[str, ...]]] = {
    "complex": (Spectrum, ("'w'", "complex64", "float32")),
    "double": (lambda: Net(lambda m, x: m.b(m.a(x.double()))).double(), ("'a.weight'", "float64")),
    "bfloat16": (lambda: Net(lambda m, x: m.b(m.a(x.bfloat16()))).bfloat16(), ("'a.weight'", "bfloat16")),
    "lazy": (lambda: nn.Sequential(nn.LazyLinear(8), nn.Linear(8, 3)), ("'0.weight'", "shape")),
    "script": (lambda: torch.jit.script(nn.Linear(6, 3)), ("TorchScript",)),
    "script inside": (lambda: nn.Sequential(torch.jit.script(nn.Linear(6, 3))), ("'0' of Sequential", "TorchScript")),
    "a closure": (closed, ("Net", "[8, 6]", "register")),
    "layers in a list": (Unregistered, ("Unregistered", "[8, 6]", "register")),
    "detached": (lambda: Net(lambda m, x: m.b(m.a(x)).detach()), ("Net", "gradient")),
    "frozen": (lambda: Net().requires_grad_(False), ("Net", "gradient")),
    "no tensor": (lambda: Net(lambda m, x: str(m.b(m.a(x)).shape)), ("Net", "tensor")),
    "sparse gradients": (Words, ("'a.weight'", "sparse=False")),
    "numpy": (lambda: Net(lambda m, x: m.b(torch.from_numpy(m.a(x).detach().numpy()))), ("`numpy`",)),
    "in place": (lambda: Net(lambda m, x: F.linear(x, m.a.weight.mul_(1))), ("Net", "a leaf Variable")),
    "no copy": (bottomless, ("Net", "'generator'")),
}


@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::UserWarning")
@pytest.mark.parametrize("name", CASES)
def test_untrainable_module_is_refused_with_a_short_error(name: str) -> None:
    make, shown = CASES[name]
    with refuses("module", *shown) as raised:
        trace_module(make(), VECTOR)
    assert len(str(raised.value)) <= 300
    assert "\n" not in str(raised.value)


def test_trace_replaced_forward_method_is_accepted() -> None:
    module = Net()
    # Users replace methods like this.
    module.forward = Net.forward.__get__(module)  # type: ignore[method-assign]
    assert [group.size for group in trace_module(copy.deepcopy(module), VECTOR).groups] == [8]


def warned(m: nn.Module, x: Tensor) -> object:
    if (x > 3).any():
        m.warnings.append("large inputs")
    return m.b(m.a(x))


def guarded(m: nn.Module, x: Tensor) -> object:
    if not torch.isfinite(x).all():
        raise ValueError("inputs are not finite")
    return m.b(m.a(x))


def finite(m: nn.Module, x: Tensor) -> object:
    if x.isnan().any():
        raise RuntimeError("inputs are no numbers")
    return m.b(m.a(x))


@pytest.mark.parametrize("forward", [warned, guarded, finite])
def test_check_of_data_without_effect_on_the_path_is_accepted(forward: Callable[[nn.Module, Tensor], object]) -> None:
    module = Net(forward)
    module.warnings = []
    assert [group.size for group in trace_module(module, VECTOR).groups] == [8]


@pytest.mark.parametrize(
    "forward",
    [
        # The path has the same functions of other parameters.
        lambda m, x: m.b((m.a if x.sum() > 0 else m.c)(x)),
        # The path has the same functions of other results.
        lambda m, x: m.b((y if x.sum() > 0 else z) if (y := m.a(x)) is not (z := m.c(x)) else y),
    ],
)
def test_path_that_depends_on_data_is_refused(forward: Callable[[nn.Module, Tensor], object]) -> None:
    module = Net(forward)
    module.c = nn.Linear(6, 8)
    with refuses("module", "`bool`"):
        trace_module(module, VECTOR)


def test_reasons_of_many_uncut_layers_are_summarised() -> None:
    layers = [part for _ in range(20) for part in (nn.Linear(6, 6), nn.LayerNorm(6))]
    traced = trace_module(nn.Sequential(*layers, nn.Linear(6, 3)), VECTOR)
    assert traced.groups == ()
    assert traced.explain_uncut() == (
        "LayerNorm takes its statistics over all units (20 x); it is the output of the model (1 x)"
    )


def test_uncut_layer_of_one_unit_names_a_single_unit() -> None:
    net = nn.Sequential(nn.Linear(6, 1), nn.ReLU(), nn.Linear(1, 3))
    assert trace_module(net, VECTOR).uncut["0"] == "0 stays whole: it is a single unit."


def test_einsum_dimension_of_size_one_is_accepted() -> None:
    def forward(m: nn.Module, x: Tensor) -> object:
        return m.b(torch.einsum("bi,oi->bo", m.a(x), m.w))

    module = Net(forward)
    module.w = nn.Parameter(torch.randn(8, 1))
    traced = trace_module(module, VECTOR)
    assert [entry.tensor for group in traced.groups for entry in group.entries] == ["w", "b.weight"]
    assert "it is combined with a dimension of another size" in traced.uncut["a"]


def by_width(m: nn.Module, x: Tensor) -> Tensor:
    y = m.a(x)
    result: Tensor = m.b(y.tanh() if y.size(1) > 1 else y)
    return result


def masked(m: nn.Module, x: Tensor) -> Tensor:
    y = m.a(x)
    result: Tensor = m.b(y * y.size(1) ** -0.5) + torch.tensor([0.0, 0.0, -1e9])
    return result


def reshaped_again(m: nn.Module, x: Tensor) -> Tensor:
    def run(x: Tensor) -> Tensor:
        result: Tensor = m.b(m.a(x).view(-1, 4, 2).sin().reshape(-1, 8))
        return result

    result: Tensor = checkpoint(run, x, use_reentrant=False)
    return result


@pytest.mark.parametrize(
    ("forward", "why"),
    [
        (lambda m, x: m.b(m.a(x).unsqueeze(1).squeeze()), "the code of the module fixes its width"),
        (by_width, "its cut gives another output"),
        (masked, "its cut gives another output"),
        (lambda m, x: m.b(m.a(x).relu()).detach().neg().abs().neg().log() + m.b(m.a(x)), "is not a number"),
        (reshaped_again, "the code of the module fixes its width"),
    ],
)
def test_layer_that_differs_at_few_widths_stays_whole(forward: Callable[[nn.Module, Tensor], Tensor], why: str) -> None:
    """A layer of one unit, an output that is mostly a mask, or a gradient that runs the code again."""
    traced = trace_module(Net(forward), VECTOR)
    assert traced.groups == ()
    assert why in traced.uncut["a"]


def within(m: nn.Module, x: Tensor) -> object:
    assert (x >= 0).all()
    return m.b(m.a(x))


def likely(m: nn.Module, x: Tensor) -> object:
    y = m.b(m.a(x))
    return y, F.binary_cross_entropy(y.sigmoid(), x[:, :3])


@pytest.mark.parametrize("forward", [within, likely, lambda m, x: m.b(m.a(x.log()))])
def test_module_that_fails_for_inputs_with_noise_is_cut(forward: Callable[[nn.Module, Tensor], object]) -> None:
    assert [group.size for group in trace_module(Net(forward), torch.rand(2, 6)).groups] == [8]


def test_layer_of_a_module_that_fails_with_random_parameters_stays_whole() -> None:
    def forward(m: nn.Module, x: Tensor) -> object:
        return m.b(m.a(x)) + F.embedding((m.b.bias != 0).any().long(), torch.ones(1, 3))

    module = Net(forward)
    nn.init.zeros_(module.b.bias)
    assert "does not run with random parameters (index out of range" in trace_module(module, VECTOR).uncut["a"]


def test_module_that_fails_after_three_runs_is_refused() -> None:
    calls: list[int] = []

    def forward(m: nn.Module, x: Tensor) -> object:
        calls.append(1)
        # Two modes and a gradient take three calls.
        if len(calls) > 3:
            raise KeyError("batch 4")
        return m.b(m.a(x))

    with refuses("example", "Net", "KeyError: 'batch 4'"):
        trace_module(Net(forward), VECTOR)


def test_module_with_an_output_of_rounding_errors_is_cut() -> None:
    def forward(m: nn.Module, x: Tensor) -> Tensor:
        y = m.b(m.a(x).relu())
        return torch.cat([y, (y.sum(1) - y.flip(1).cumsum(1)[:, -1])[:, None]], 1)

    assert len(trace_module(Net(forward), VECTOR).groups) == 1


@pytest.mark.parametrize(
    ("forward", "reason"), [(lambda m, x: {}["labels"], "KeyError: 'labels'"), (lambda m, x: 1 / 0, "division by zero")]
)
def test_error_contains_the_exception_of_a_failing_module(
    forward: Callable[[nn.Module, Tensor], object], reason: str
) -> None:
    with refuses("example", "Net", reason):
        trace_module(Net(forward), VECTOR)
