"""Costs of a cut against sums computed by hand."""

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.utils import parametrizations

from fedraa.submodels import measure_cost, take_prefix
from fedraa.submodels.meter import Meter, find_backward_layers, measure_step
from fedraa.submodels.tracing.trace import trace_module
from fedraa.submodels.whole import take_whole


def test_cost_of_an_mlp_equals_the_sums_by_hand() -> None:
    module = nn.Sequential(nn.Linear(100, 40), nn.ReLU(), nn.Linear(40, 10))
    x = torch.randn(8, 100)
    traced = trace_module(module, x)
    cost = measure_cost(traced, (20,), x)
    assert cost.params == 100 * 20 + 20 + 20 * 10 + 10
    assert cost.bytes == 4 * cost.params
    # The terms are the forward pass and the gradients of weights and hidden layer, at 2 FLOPs per multiply-add.
    assert cost.flops == 2 * (100 * 20 + 20 * 10) * 2 + 2 * 20 * 10
    # The minimum is parameters, gradients, and the gradient of the hidden layer.
    assert 2 * cost.bytes + 4 * 8 * 20 <= cost.memory <= 2 * cost.bytes + 6 * 4 * 8 * (20 + 10)


def test_cost_is_measured_once_per_shape() -> None:
    x = torch.randn(2, 4)
    traced = trace_module(nn.Sequential(nn.Linear(4, 6), nn.ReLU(), nn.Linear(6, 2)), x)
    half = measure_cost(traced, take_prefix(traced, 0.5), x)
    assert measure_cost(traced, (3,), x) is half
    assert measure_cost(traced, (4,), x) is not half
    assert measure_cost(traced, (3,), torch.randn(4, 4)) is not half


def test_memory_holds_the_activations_of_a_convolution() -> None:
    x = torch.randn(16, 3, 32, 32)
    layers = [nn.Conv2d(3, 16, 3, padding=1), nn.ReLU(), nn.Conv2d(16, 16, 3, padding=1), nn.ReLU()]
    traced = trace_module(nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(16, 10)), x)
    full, half = (measure_cost(traced, widths, x).memory for widths in ((16, 16), (8, 8)))
    # One activation has 16 channels. Three of them are kept for the backward pass.
    activation = 4 * 16 * 16 * 32 * 32
    assert 3 * activation < full < 8 * activation
    assert 0.4 < half / full < 0.6


def test_flops_of_convolutions_equal_the_sum_by_hand() -> None:
    x = torch.randn(2, 3, 8, 8)
    dense, depthwise = nn.Conv2d(3, 6, 3, padding=1), nn.Conv2d(6, 6, 3, padding=1, groups=6)
    traced = trace_module(nn.Sequential(dense, depthwise, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(6, 2)), x)
    # An output pixel of a channel takes 3 * 9 or 1 * 9 multiply-adds. The input image needs no gradient.
    expected = {w: 2 * 64 * w * (27 * 2 + 9 * 3) + 2 * w * 2 * 3 for w in (6, 3)}
    assert {w: measure_cost(traced, (w,), x).flops for w in (6, 3)} == expected


def test_flops_of_attention_equal_the_sum_by_hand() -> None:
    class Attend(nn.Module):
        """Eight heads of two dimensions over five tokens of width 16."""

        def __init__(self) -> None:
            super().__init__()
            self.qkv, self.out = nn.Linear(16, 48), nn.Linear(16, 3)

        def forward(self, x: Tensor) -> Tensor:
            q, k, v = (part.unflatten(-1, (8, 2)).transpose(1, 2) for part in self.qkv(x).chunk(3, dim=-1))
            return self.out(F.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2))

    x = torch.randn(4, 5, 16)
    traced = trace_module(Attend(), x)
    # This counts one sample. The input needs no gradient.
    linear = 2 * 5 * (16 * 48 * 2 + 16 * 3 * 3)
    # This is one product of all pairs of tokens, in every head.
    scores = 2 * 8 * 5 * 5 * 2
    # The forward pass has two products. The backward pass computes the scores again and the gradients of both.
    assert measure_cost(traced, traced.widths(traced.full()), x).flops == linear + (2 + 1 + 4) * scores


class _Bilinear(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Bilinear(3, 4, 5)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = self.layer(x[:, :3], x[:, 3:])
        return out


class _Vector(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(7))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x @ self.weight


@pytest.mark.parametrize(("module", "terms"), [(_Bilinear(), 3 * 4 * 5), (_Vector(), 7)])
def test_flops_of_bilinear_layers_and_vector_products_equal_the_sum_by_hand(module: nn.Module, terms: int) -> None:
    """The forward pass and the gradient of the weight each have a multiplication and an addition per term."""
    assert measure_step(module, torch.randn(4, 7)).flops == 2 * 2 * terms
    # The gradients of both inputs of a bilinear layer are two more products.
    if isinstance(module, _Bilinear):
        assert measure_step(module, torch.randn(4, 7, requires_grad=True)).flops == 4 * 2 * terms


def test_flops_of_products_that_add_a_tensor_and_of_a_dot_product() -> None:
    matrix, vector = torch.ones(6, 3, requires_grad=True), torch.ones(6, requires_grad=True)
    batches, row = torch.ones(2, 4, 6), torch.ones(6)
    with Meter() as meter:
        torch.addmv(torch.ones(4), batches[0], vector)
    assert meter.flops == 2 * 4 * 6
    with Meter() as meter:
        torch.addbmm(torch.ones(4, 3), batches, matrix.expand(2, 6, 3))
    assert meter.flops == 2 * 2 * 4 * 6 * 3
    with Meter() as meter:
        torch.dot(row, vector)
    assert meter.flops == 2 * 6


@pytest.mark.parametrize("layers", [1, 2])
@pytest.mark.parametrize("directions", [1, 2])
def test_flops_of_an_lstm_equal_the_sum_by_hand(layers: int, directions: int) -> None:
    length, width, hidden = 7, 6, 5
    lstm = nn.LSTM(width, hidden, num_layers=layers, bidirectional=directions == 2, batch_first=True)
    x = torch.randn(4, length, width, requires_grad=True)
    # A step multiplies its input and the last hidden state by four gates. A later layer reads all directions.
    inputs = [width, *[directions * hidden] * (layers - 1)]
    forward = 2 * length * directions * sum(4 * hidden * (size + hidden) for size in inputs)
    # The backward pass computes the gradients of the weights and of the inputs.
    assert measure_step(lstm, x).flops == 3 * forward


def test_parameters_of_a_parametrized_layer_are_one_layer_of_the_backward_pass() -> None:
    head = parametrizations.weight_norm(nn.Linear(4, 2))
    x = torch.randn(2, 3)
    layers = find_backward_layers(take_whole(nn.Sequential(nn.Linear(3, 4), nn.ReLU(), head), x), x)
    assert [set(names) for names in layers] == [
        {f"2.{name}" for name, _ in head.named_parameters()},
        {"0.weight", "0.bias"},
    ]
