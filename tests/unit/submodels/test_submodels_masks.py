"""Element-wise masks."""

import numpy as np
import torch
from refusals import refuses
from torch import nn

from fedraa.submodels.masks import draw_bernoulli, random_parts
from fedraa.submodels.tracing.trace import trace_module

# The sizes of the parameters are 12, 3, 6 and 2.
TRACED = trace_module(nn.Sequential(nn.Linear(4, 3), nn.ReLU(), nn.Linear(3, 2)), torch.zeros(2, 4))
WIDE = trace_module(nn.Sequential(nn.Linear(100, 100), nn.ReLU(), nn.Linear(100, 2)), torch.zeros(2, 100))


def test_bernoulli_other_generator_draws_another_mask() -> None:
    rng = np.random.default_rng(0)
    first, second = (draw_bernoulli(WIDE, 0.3, rng) for _ in range(2))
    d = WIDE.size
    assert first.shape == (d,)
    for share, p in ((first.mean(), 0.3), ((first & second).mean(), 0.09)):
        # The tolerance is four standard deviations.
        assert abs(share - p) < 4 * np.sqrt(p * (1 - p) / d)
    with refuses("p", got=0):
        draw_bernoulli(TRACED, 0, rng)


def test_random_parts_divide_the_named_parameters() -> None:
    masks = random_parts(TRACED, 4, ["0.weight", "2.weight"], np.random.default_rng(0))
    counts = np.sum(masks, axis=0)
    assert counts.tolist() == [1] * 12 + [4] * 3 + [1] * 6 + [4] * 2
    assert [int(mask.sum()) - 5 for mask in masks] == [5, 5, 4, 4]  # 18 elements in 4 parts
    again = random_parts(TRACED, 4, ["0.weight", "2.weight"], np.random.default_rng(1))
    assert any((a != b).any() for a, b in zip(masks, again, strict=True))
    with refuses("names", got=["1.weight"]):
        random_parts(TRACED, 4, ["1.weight"], np.random.default_rng(0))
