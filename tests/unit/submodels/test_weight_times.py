"""How often a sample's pass uses a weight, and that PruneFL chooses by squared gradients per use."""

import numpy as np
import torch
from torch import nn

from fedraa.messages import Update
from fedraa.submodels.policies.policy import RoundContext, RunContext
from fedraa.submodels.policies.pruning import AdaptivePruning, weight_times
from fedraa.submodels.tracing.trace import trace

# Two 3x3 convolutions, padded, on 4x4 images, the second with stride 2, then a dense layer that reads 2 x 2 x 2 values.
MODEL = nn.Sequential(
    nn.Conv2d(1, 2, 3, padding=1), nn.ReLU(), nn.Conv2d(2, 2, 3, stride=2, padding=1), nn.Flatten(), nn.Linear(8, 3)
)
EXAMPLE = torch.zeros(2, 1, 4, 4)


def test_a_convolutions_weight_is_used_at_every_position() -> None:
    """16 positions of 20 parameters, 4 of 38, and a dense layer's 27 once."""
    times = weight_times(trace(MODEL, EXAMPLE), EXAMPLE)
    assert times.tolist() == [16.0] * 20 + [4.0] * 38 + [1.0] * 27
    assert weight_times(trace(MODEL, EXAMPLE), None).tolist() == [1.0] * 85


def test_the_first_client_prunes_alone_before_the_others_begin_by_squares_per_time() -> None:
    """Of equal squared gradients those of a weight that is used 4 times count a quarter of one that is used once."""
    traced = trace(MODEL, EXAMPLE)
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

    spans = ((0, 18), (18, 20), (20, 56), (56, 58), (58, 82))  # all but the last bias
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
    assert all(c >= 20 for c in winners)  # by squares alone some of the first convolution's would have won
    assert any(c < 20 for c in sorted(free, key=lambda c: -squares[c])[:places])
