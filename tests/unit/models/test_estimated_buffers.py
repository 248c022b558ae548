"""Estimates of the buffers that training changes, against values computed from the sample."""

import warnings

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.ao.quantization import FakeQuantize, HistogramObserver, MinMaxObserver, MovingAverageMinMaxObserver

from fedraa.models.statistics import Unsettled, copy_buffers, put_buffers, reestimate_statistics, settle_spectral
from tests.changing_modules import WIDTH, DebiasedNorm, FrozenNorm, MovingNorm, Queue, ReplacingNorm, SummingNorm

PART = 25


@pytest.fixture
def x() -> Tensor:
    return torch.randn(100, WIDTH, generator=torch.Generator().manual_seed(0)) * torch.arange(1.0, 7) + 50


def parts_of(x: Tensor) -> list[Tensor]:
    """Return the batches of an estimate: of 4 batches of 25 samples, each has every fourth sample."""
    count = len(x) // PART
    return [x[first::count] for first in range(count)]


def estimate(layer: nn.Module, x: Tensor, *, read: bool = True) -> nn.Module:
    model = nn.Sequential(layer, nn.Dropout(0.5))
    names = [name for name, _ in model.named_buffers()]
    reestimate_statistics(model, x.numpy(), batch=PART, estimated=names, read=names if read else ())
    return layer


@pytest.mark.parametrize("momentum", [0.9, 0.5, 0.1, 0.01])
def test_estimate_of_moving_averages_is_the_mean_over_the_parts(x: Tensor, momentum: float) -> None:
    layer = estimate(MovingNorm(momentum), x)
    assert torch.allclose(layer.mean, x.mean(0), rtol=1e-3)
    assert torch.allclose(layer.var, torch.stack([part.var(0) for part in parts_of(x)]).mean(0), rtol=1e-3)


def test_estimate_of_replaced_buffers_is_the_mean_and_a_counter_counts_one_pass(x: Tensor) -> None:
    model = nn.Sequential(ReplacingNorm())
    reestimate_statistics(model, x.numpy(), batch=PART, estimated=["0.mean", "0.var", "0.count"], read=["0.mean"])
    assert torch.allclose(model[0].mean, x.mean(0), rtol=1e-3)
    assert int(model[0].count) == 4


def test_estimate_of_counted_statistics_stays_in_step_with_the_count(x: Tensor) -> None:
    summing, debiased = SummingNorm(), DebiasedNorm()
    assert torch.allclose(estimate(summing, x).eval()(x), x - x.mean(0), atol=1e-3)
    # A moving average gives the last parts the largest weights.
    parts = parts_of(x)
    assert torch.allclose(
        estimate(debiased, x).eval()(x), x - torch.stack([p.mean(0) for p in parts]).mean(0), atol=0.2
    )


def test_estimate_depends_on_parameters_and_sample_only(x: Tensor) -> None:
    model = nn.Sequential(MovingNorm(0.3), nn.Linear(WIDTH, WIDTH), MovingNorm(0.1))
    names = [name for name, _ in model.named_buffers()]
    start = copy_buffers(model)
    copies = []
    for _ in range(2):
        put_buffers(model, start)
        torch.rand(3)
        reestimate_statistics(model, x.numpy(), batch=PART, estimated=names, read=names)
        copies.append(copy_buffers(model))
        model.train()(x + 100)
    assert all(torch.equal(copies[0][name], copies[1][name]) for name in names)
    # The second norm's statistics are those of the first norm's output in training mode.
    parts = [(p - p.mean(0)) / (p.var(0) + 1e-5).sqrt() for p in parts_of(x)]
    expected = torch.stack([model[1](part).var(0) for part in parts]).mean(0)
    assert torch.allclose(copies[0]["2.var"], expected, rtol=1e-3)


def test_estimate_of_batch_norms_beside_other_norms_is_the_same_as_without_them(x: Tensor) -> None:
    alone, both = nn.Sequential(nn.BatchNorm1d(WIDTH)), nn.Sequential(nn.BatchNorm1d(WIDTH), MovingNorm())
    reestimate_statistics(alone, x.numpy(), batch=PART)
    reestimate_statistics(both, x.numpy(), batch=PART, estimated=["1.mean", "1.var"], read=["1.mean", "1.var"])
    assert torch.equal(alone[0].running_mean, both[0].running_mean)
    assert torch.equal(alone[0].running_var, both[0].running_var)


def test_estimate_of_batch_norm_without_momentum_is_the_mean_and_momentum_stays(x: Tensor) -> None:
    model = nn.Sequential(nn.BatchNorm1d(WIDTH, momentum=None))
    reestimate_statistics(model, x.numpy(), batch=PART)
    assert torch.allclose(model[0].running_mean, x.mean(0), rtol=1e-5)
    assert model[0].momentum is None


def test_estimate_of_a_batch_norm_that_stays_in_evaluation_mode_keeps_its_statistics(x: Tensor) -> None:
    model = nn.Sequential(FrozenNorm(WIDTH), nn.BatchNorm1d(WIDTH))
    model[0].running_mean.fill_(7.0)
    reestimate_statistics(model, x.numpy(), batch=PART)
    assert torch.equal(model[0].running_mean, torch.full((WIDTH,), 7.0))
    assert torch.allclose(model[1].running_mean, x.mean(0) - 7.0, rtol=1e-3)


def test_estimate_of_instance_norm_is_the_mean_over_samples() -> None:
    x = torch.randn(40, 3, 8) * 2 + 5
    model = nn.Sequential(nn.InstanceNorm1d(3, track_running_stats=True))
    names = ["0.running_mean", "0.running_var"]
    reestimate_statistics(model, x.numpy(), batch=10, estimated=names, read=names)
    assert torch.allclose(model[0].running_mean, x.mean(2).mean(0), rtol=1e-3)
    assert torch.allclose(model[0].running_var, x.var(2).mean(0), rtol=1e-3)


def test_estimate_of_observers_is_the_range_of_the_activations(x: Tensor) -> None:
    layer = estimate(MinMaxObserver(), x)
    assert (float(layer.min_val), float(layer.max_val)) == (float(x.min()), float(x.max()))
    layer = estimate(MovingAverageMinMaxObserver(), x)
    lows = np.mean([float(part.min()) for part in parts_of(x)])
    highs = np.mean([float(part.max()) for part in parts_of(x)])
    assert (float(layer.min_val), float(layer.max_val)) == pytest.approx((lows, highs), rel=1e-3)
    layer = estimate(HistogramObserver(), x)
    assert float(layer.max_val) == float(x.max())
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        layer = estimate(FakeQuantize(MinMaxObserver, quant_min=0, quant_max=255), x)
    # All inputs are positive.
    assert float(layer.scale) == pytest.approx(float(x.max()) / 255, rel=1e-5)


@pytest.mark.parametrize("norm", [nn.utils.spectral_norm, nn.utils.parametrizations.spectral_norm])
def test_settled_spectral_norm_divides_by_the_largest_singular_value(norm) -> None:
    torch.manual_seed(0)
    layer = norm(nn.Linear(9, 7))
    raw = dict(layer.named_parameters()).get("weight_orig")
    raw = layer.parametrizations.weight.original if raw is None else raw
    with torch.no_grad():
        # The vectors still belong to the previous weight.
        raw.copy_(torch.randn(7, 9) * 3)
    settle_spectral(layer)
    layer.eval()(torch.zeros(1, 9))
    largest = torch.linalg.svdvals(raw.detach())[0]
    assert torch.allclose(layer.weight, raw / largest, rtol=1e-4)


def test_estimate_of_a_buffer_that_never_settles_raises(x: Tensor, monkeypatch) -> None:
    monkeypatch.setattr("fedraa.models.statistics.MAX_PASSES", 20)
    with pytest.raises(Unsettled):
        estimate(Queue(), x[:99])
