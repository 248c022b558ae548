"""Units that cannot be cut stay whole, with the reason in an error or a warning. The other units are cut."""

import pytest
import torch
import torch.nn.functional as F
from cut_cases import IMAGE, VECTOR, Calls, Case, Parameter, check_case, conv, head, head_of
from torch import Tensor, nn

from fedraa.submodels.tracing.trace import trace_module


def checked(x: Tensor, width: int) -> Tensor:
    assert x.size(1) == width
    return x


def all_halved(x: Tensor) -> Tensor:
    y = torch.zeros_like(x)
    y[:, 0:] = x / 2
    return y


def without_first(x: Tensor) -> Tensor:
    x = x.clone()
    x[:, :1] = 0
    return x


# Each name maps to a module, an example and the sizes of its groups.
CASES: dict[str, Case] = {
    "group norm of one group": (nn.Sequential(conv(3, 12), nn.GroupNorm(1, 12), nn.GELU(), head(12)), IMAGE, []),
    "layer norm": (
        nn.Sequential(nn.Linear(6, 8), nn.LayerNorm(8), nn.Linear(8, 10), nn.GELU(), nn.Linear(10, 3)),
        VECTOR,
        [10],
    ),
    "a softmax over channels": (
        nn.Sequential(nn.Linear(6, 8), nn.Softmax(-1), nn.Linear(8, 5), nn.ReLU(), nn.Linear(5, 3)),
        VECTOR,
        [5],
    ),
    "a mean over channels": (
        Calls(lambda m, x: m["b"](m["a"](x).mean(1, keepdim=True)), a=conv(3, 8), b=nn.Sequential(conv(1, 4), head(4))),
        IMAGE,
        [4],
    ),
    "a constant slice": (
        Calls(
            lambda m, x: m["b"](m["a"](x)[:, :4]), a=nn.Linear(6, 8), b=nn.Sequential(nn.Linear(4, 5), nn.Linear(5, 3))
        ),
        VECTOR,
        # One group has the units that the slice takes, and the other has the units that it drops.
        [4, 4, 5],
    ),
    "a width that is checked": (
        Calls(lambda m, x: m["b"](checked(m["a"](x), 8)), a=nn.Linear(6, 8), b=head_of(8)),
        VECTOR,
        [4],
    ),
    "a parameter read by an unknown function": (
        Calls(
            lambda m, x: m["b"]((m["a"](x) + m["p"].value) * m["p"].value.cumprod(0)),
            a=nn.Linear(6, 8),
            p=Parameter(8),
            b=nn.Linear(8, 3),
        ),
        VECTOR,
        [],
    ),
    "statistics over channels by hand": (
        Calls(
            lambda m, x: m["c"](m["b"]((y := m["a"](x)) * torch.rsqrt(y.pow(2).mean(-1, keepdim=True) + 1))),
            a=nn.Linear(6, 8),
            b=nn.Linear(8, 5),
            c=nn.Linear(5, 3),
        ),
        VECTOR,
        [5],
    ),
    "a scale by its own width": (
        Calls(lambda m, x: m["b"](y := m["a"](x)) / y.shape[1], a=nn.Linear(6, 8), b=nn.Linear(8, 3)),
        VECTOR,
        # Only the trial of a cut shows the difference.
        [],
    ),
    "a roll over the units": (
        Calls(
            lambda m, x: m["c"](y := m["a"](x)) + m["c"](m["b"](y).roll(1, -1)),
            a=nn.Linear(6, 12),
            b=nn.Linear(12, 12),
            c=nn.Linear(12, 3),
        ),
        VECTOR,
        # The cut in the test of width groups keeps unit 0, for which the roll makes no difference.
        [],
    ),
    "an assignment to the first unit": (
        Calls(lambda m, x: m["b"](without_first(m["a"](x))), a=nn.Linear(6, 8), b=nn.Linear(8, 3)),
        VECTOR,
        [],
    ),
    "an assignment to all units by a slice": (
        Calls(lambda m, x: m["b"](all_halved(m["a"](x))), a=nn.Linear(6, 8), b=nn.Linear(8, 3)),
        VECTOR,
        [8],
    ),
    "an unknown function": (
        Calls(
            lambda m, x: m["c"](F.relu(m["b"](m["a"](x).cumprod(1)))),
            a=nn.Linear(6, 8),
            b=nn.Linear(8, 5),
            c=nn.Linear(5, 3),
        ),
        VECTOR,
        [5],
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_cut_equals_the_full_module_with_zeros(name: str) -> None:
    check_case(*CASES[name])


REASONS = {
    "a parameter read by an unknown function": {
        "layers.a": "layers.a stays whole: it is combined with a tensor that is never cut.",
        "layers.p.value": "layers.p.value stays whole: `cumprod` has no tracing rule.",
        "layers.b": "layers.b stays whole: it is the output of the model.",
    },
    "layer norm": {
        "0": "0 stays whole: LayerNorm takes its statistics over all units.",
        "4": "4 stays whole: it is the output of the model.",
    },
    "group norm of one group": {
        "0": "0 stays whole: GroupNorm takes its statistics over all units.",
        "3.2": "3.2 stays whole: it is the output of the model.",
    },
    "an assignment to the first unit": {
        "layers.a": "layers.a stays whole: the code picks some units by their index.",
        "layers.b": "layers.b stays whole: it is the output of the model.",
    },
    "an unknown function": {
        "layers.a": "layers.a stays whole: `cumprod` has no tracing rule.",
        "layers.c": "layers.c stays whole: it is the output of the model.",
    },
}


@pytest.mark.parametrize("name", REASONS)
def test_trace_reports_why_layers_stay_whole(name: str) -> None:
    module, example, _ = CASES[name]
    assert trace_module(module, example).uncut == REASONS[name]


def test_trace_reports_code_with_constant_widths() -> None:
    module, example, _ = CASES["a width that is checked"]
    assert "the code of the module fixes its width" in trace_module(module, example).uncut["layers.a"]
