"""FedGMR against results by hand: the mean of the last submodels of all clients, and growing submodels."""

from itertools import pairwise

import numpy as np
import pytest
import torch
from refusals import refuses
from torch import Tensor, nn

from fedraa.composition.registry import list_methods
from fedraa.messages import Vector
from fedraa.methods.fedgmr import FedGMR
from fedraa.server.async_rule import AsyncModel, ClientUpdate
from fedraa.submodels.policies import SUBMODEL
from fedraa.submodels.policies.growing import Growing, mask_largest
from fedraa.submodels.policies.policy import RunContext
from fedraa.submodels.tracing.trace import trace_module

METHODS = list_methods()


def take(
    rule: FedGMR, model: AsyncModel, client: int, where: object, new: list[float], stale: int = 0, samples: int = 10
) -> float:
    values = np.array(new, np.float32)
    sent = np.zeros_like(values)
    arrival = ClientUpdate(client, 0, where, values, sent, stale, samples, 1.0)  # type: ignore[arg-type]
    return rule.apply_update(arrival, model).weight


def test_weights_of_two_submodels_decrease_with_their_age() -> None:
    """a = (1, 4^-.6) normalised is (.696730, .303270)."""
    model = AsyncModel(np.array([1, 2, 3], np.float32), 2, 1)
    rule = FedGMR().bind(model)
    take(rule, model, 0, slice(None), [2, 2, 4])
    assert take(rule, model, 1, np.array([0, 1]), [0.5, 1], 3) == pytest.approx(0.303270, abs=1e-6)
    np.testing.assert_allclose(model.params, (1.545096, 1.696730, 4), atol=1e-6)


def test_buffer_of_two_weights_submodels_by_age_and_samples() -> None:
    """Weights 10 and 30 * 4^-.5 = 15: (10 * 2 + 15 * 12) / 25 = 8. The client's second submodel has the weight 40."""
    model = AsyncModel(np.array([1, 5], np.float32), 2, 1)
    rule = FedGMR(size=2, exponent=0.5).bind(model)
    assert take(rule, model, 0, np.array([0]), [2]) == pytest.approx(1)
    np.testing.assert_array_equal(model.params, [1, 5])
    assert take(rule, model, 1, np.array([0]), [12], stale=3, samples=30) == pytest.approx(0.6)
    np.testing.assert_allclose(model.params, [8, 5])
    take(rule, model, 0, slice(None), [0, 7], samples=40)
    np.testing.assert_allclose(model.params, [8, 5])
    take(rule, model, 0, slice(None), [1, 9], samples=40)
    np.testing.assert_allclose(model.params, [(40 * 1 + 15 * 12) / 55, 9])


def test_fresh_whole_models_with_equal_samples_are_averaged() -> None:
    """Densities 1, ages 0: the mean of the last models of all clients, for any number of updates of each."""
    model, rng, last = AsyncModel(np.zeros(6, np.float32), 3, 1), np.random.default_rng(0), {}
    rule = FedGMR().bind(model)
    for _ in range(200):
        client, last_one = int(rng.integers(3)), rng.standard_normal(6)
        last[client] = last_one
        take(rule, model, client, slice(None), last_one.tolist())
        np.testing.assert_allclose(model.params, np.mean(list(last.values()), axis=0), atol=1e-6)


def test_coordinate_in_no_submodel_keeps_its_bits() -> None:
    """A coordinate stays unchanged if none of the clients' last submodels has it."""
    model = AsyncModel(np.array([0.1, 0.2, 0.3], np.float32), 2, 1)
    rule = FedGMR().bind(model)
    for k in range(50):
        take(rule, model, k % 2, np.array([0, 1]), [0.1 * k, 0.3 * k], k % 5)
        assert model.params[2] == np.float32(0.3)
    take(rule, model, 0, np.array([0]), [5])
    take(rule, model, 1, np.array([0]), [5])
    before = model.params.copy()
    take(rule, model, 0, np.array([0]), [7])
    assert (model.params[1:] == before[1:]).all()
    assert model.params[0] != before[0]


def test_density_floor_rises_with_time_and_never_falls() -> None:
    """Each density applies until its time: .05 until .2 T, and 1 from .8 T on."""
    policy = Growing(until=10.0)
    assert [policy.floor(now) for now in (0, 1.99, 2, 4, 6, 7.99, 8, 99)] == [0.05, 0.05, 0.1, 0.2, 0.5, 0.5, 1, 1]
    floors = [policy.floor(now) for now in np.linspace(0, 12, 200)]
    assert floors == sorted(floors)


def test_masks_are_nested_and_keep_the_largest_weights_of_all_tensors() -> None:
    params = np.random.default_rng(1).standard_normal(1000).astype(np.float32)
    # The weights of one tensor are larger than all others.
    params[:200] *= 100
    # There are biases between the tensors.
    spans = [slice(0, 200), slice(300, 1000)]
    masks = [mask_largest(params, spans, density) for density in (0.05, 0.1, 0.5, 0.9)]
    for less, more in pairwise(masks):
        assert not (less & ~more).any()
    assert all(mask[200:300].all() for mask in masks)
    # This is a tenth of 900.
    assert masks[1][:200].sum() == 90
    # Two per cent of 700, the minimum.
    assert masks[1][300:].sum() == 14


def test_mask_keeps_the_largest_weights_in_the_order_of_a_stable_sort() -> None:
    """Among equal values the first is chosen, and NaN is last, as in Python's stable sort."""
    rng = np.random.default_rng(2)
    for density in (0.001, 0.1, 0.5, 0.97, 1.0):
        # Many values are equal.
        params = np.round(rng.standard_normal(300) * 2).astype(np.float32)
        params[rng.integers(300, size=20)] = np.nan
        params[rng.integers(300, size=20)] = -np.inf
        spans = [slice(10, 130), slice(150, 290)]
        places = [i for span in spans for i in range(span.start, span.stop)]

        def rank(i: int, params: Vector = params) -> tuple[bool, float]:
            return bool(np.isnan(params[i])), -abs(params[i])

        kept = set(sorted(places, key=rank)[: max(1, round(density * 260))])
        for tensor in (places[:120], places[120:]):
            # This is two per cent of the values.
            kept |= set(sorted(tensor, key=rank)[:3])
        assert set(np.flatnonzero(~mask_largest(params, spans, density))) == set(places) - kept


def test_fedgmr_has_the_densities_and_exponent_of_the_paper() -> None:
    submodel = METHODS["fedgmr"].submodel
    assert isinstance(submodel, Growing)
    assert submodel.capacities.levels == (1, 0.5, 0.2, 0.1, 0.05, 0.05, 0.05, 0.05, 0.05, 0.05)
    assert METHODS["fedgmr"].update == FedGMR(size=1, exponent=0.6)


def test_growing_until_0_is_refused() -> None:
    with refuses("submodel.until", got=0):
        SUBMODEL.resolve("growing(until=0)")


class Scaled(nn.Module):
    """A block with vectors as its only parameters."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Sequential(nn.LayerNorm(4))

    def forward(self, x: Tensor) -> Tensor:
        return x + self.inner(x)


def test_growing_refuses_blocks_without_matrices() -> None:
    traced = trace_module(nn.Sequential(Scaled(), Scaled(), nn.Linear(4, 2)), torch.zeros(2, 4))
    with pytest.raises(ValueError, match=r"^model: .*Sequential"):
        Growing().bind(RunContext(traced, 2, 0))
