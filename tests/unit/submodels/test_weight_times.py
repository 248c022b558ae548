"""The number of uses of a weight in a sample's pass, and PruneFL's choice by squared gradients per use."""

import numpy as np
import torch
from torch import nn
from torch.nn.utils import parametrizations

from fedraa.messages import Update
from fedraa.submodels.policies.policy import RoundContext, RunContext
from fedraa.submodels.policies.pruning import AdaptivePruning, weight_times
from fedraa.submodels.tracing.trace import trace_module
from fedraa.submodels.whole import take_whole

# Two 3x3 convolutions, padded, on 4x4 images, the second with stride 2, then a dense layer that reads 2 x 2 x 2 values.
MODEL = nn.Sequential(
    nn.Conv2d(1, 2, 3, padding=1), nn.ReLU(), nn.Conv2d(2, 2, 3, stride=2, padding=1), nn.Flatten(), nn.Linear(8, 3)
)
EXAMPLE = torch.zeros(2, 1, 4, 4)


def test_a_convolutions_weight_is_used_at_every_position() -> None:
    """20 parameters are used at 16 positions, 38 at 4, and the dense layer's 27 at one."""
    times = weight_times(trace_module(MODEL, EXAMPLE), EXAMPLE)
    assert times.tolist() == [16.0] * 20 + [4.0] * 38 + [1.0] * 27
    assert weight_times(trace_module(MODEL, EXAMPLE), None).tolist() == [1.0] * 85


def test_a_transposed_convolutions_weight_is_used_at_every_input_position() -> None:
    """The output has 8 x 8 positions, but each of the 3 x 2 x 2 x 2 weights multiplies the 4 x 4 inputs only."""
    example = torch.zeros(2, 3, 4, 4)
    layer = nn.ConvTranspose2d(3, 2, 2, stride=2, bias=False)
    model = nn.Sequential(layer, nn.Flatten(), nn.Linear(128, 1, bias=False))
    times = weight_times(trace_module(model, example), example)
    assert times.tolist() == [16.0] * 24 + [1.0] * 128


def test_weights_of_norms_and_activations_are_used_for_every_value_that_they_multiply() -> None:
    """The image has 4 x 6 pixels. A layer with one weight per channel uses it 24 times, the shared slope 72 times."""
    example = torch.zeros(2, 3, 4, 6)
    per_channel = (nn.BatchNorm2d(3), nn.GroupNorm(1, 3), nn.InstanceNorm2d(3, affine=True), nn.PReLU(3))
    rows = nn.LayerNorm(6)
    model = nn.Sequential(*per_channel, nn.PReLU(), rows, nn.LayerNorm((3, 4, 6)), nn.Flatten(), nn.Linear(72, 1))
    times = weight_times(trace_module(model, example), example)
    assert times.tolist() == [24.0] * (6 + 6 + 6 + 3) + [72.0] + [12.0] * 12 + [1.0] * (144 + 73)


def test_parameters_of_a_parametrized_layer_are_used_at_the_positions_of_this_layer() -> None:
    """The convolution has 4 x 4 output pixels. Torch computes its weight in a separate module."""
    layer = parametrizations.weight_norm(nn.Conv2d(1, 2, 3, padding=1, bias=False))
    model = nn.Sequential(layer, nn.Flatten(), nn.Linear(32, 1, bias=False))
    times = weight_times(take_whole(model, EXAMPLE), EXAMPLE)
    assert times.tolist() == [16.0] * (2 + 18) + [1.0] * 32


def test_weight_that_two_layers_share_is_used_by_both() -> None:
    """Both linear layers multiply 3 positions by the first weight, and the second one adds its bias 3 times."""
    model = nn.Sequential(nn.Linear(4, 4, bias=False), nn.ReLU(), nn.Linear(4, 4))
    model[2].weight = model[0].weight
    example = torch.zeros(2, 3, 4)
    times = weight_times(take_whole(model, example), example)
    assert times.tolist() == [6.0] * 16 + [3.0] * 4


class _Attention(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.attention = nn.MultiheadAttention(4, 2, batch_first=True)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = self.attention(x, x, x)[0].mean(1)
        return out


def test_all_projections_of_attention_are_used_at_every_position() -> None:
    example = torch.zeros(2, 6, 4)
    times = weight_times(trace_module(_Attention(), example), example)
    assert times.tolist() == [6.0] * (3 * 4 * 4 + 3 * 4 + 4 * 4 + 4)


def test_prunefl_chooses_weights_by_squared_gradients_per_use() -> None:
    """A squared gradient of a weight that is used 4 times counts a quarter of one that is used once."""
    traced = trace_module(MODEL, EXAMPLE)
    params = np.random.default_rng(0).normal(size=traced.size).astype(np.float32)
    began = params.copy()
    policy = AdaptivePruning(density=0.5, initial=1)
    run = RunContext(traced, 3, 0, params, EXAMPLE)
    sampler = policy.bind(run)
    assert (policy.alone, sampler.alone, AdaptivePruning(density=1.0).alone) == (1, 1, 0)
    drawn = sampler.draw(RoundContext(0, 0, 0, 1, 0.0, params, run))
    before = drawn.mask
    assert before is not None
    assert sampler.extra_buffers.up_whole == 1
    squares = np.random.default_rng(1).uniform(0.5, 1, traced.size).astype(np.float32)
    update = Update(0, 0, 0, 0, params, 1, 1.0, 0.0, {"squares": squares})
    sampler.receive(drawn, update, 1.0)
    sampler.close(params, np.zeros(traced.size, np.float32), before, 0.1)
    assert sampler.extra_buffers.up_whole == 0

    # These are all tensors except the last bias.
    spans = ((0, 18), (18, 20), (20, 56), (56, 58), (58, 82))
    kept, free, places = before.copy(), [], 0
    for start, end in spans:
        present = start + np.flatnonzero(before[start:end])
        smallest = present[np.argsort(np.abs(began[present]))[: int(0.3 * 0.5 ** (1 / 10_000) * len(present))]]
        free += [*smallest, *(start + np.flatnonzero(~before[start:end]))]
        kept[smallest] = False
        places += len(smallest)
    by_use = {c: squares[c] / (16 if c < 20 else 4 if c < 58 else 1) for c in free}
    winners = sorted(by_use, key=lambda c: -by_use[c])[:places]
    kept[winners] = True
    after = sampler.draw(RoundContext(0, 1, 0, 3, 0.0, params, run)).mask
    assert after is not None
    np.testing.assert_array_equal(after, kept)
    # By squares only, some weights of the first convolution would win.
    assert all(c >= 20 for c in winners)
    assert any(c < 20 for c in sorted(free, key=lambda c: -squares[c])[:places])
