"""Masks of regions of the parameters: levels, coverage, uncovered rounds and schedules."""

import numpy as np
import numpy.typing as npt
import pytest
import torch
from policy_draws import CLIENTS, SEED, SIZE, draws, trained
from refusals import refuses
from torch import Tensor, nn

from fedraa.models import build_model
from fedraa.rng import generator
from fedraa.submodels import Traced
from fedraa.submodels.masks import hidden_parts
from fedraa.submodels.policies.policy import RunContext
from fedraa.submodels.policies.regions import Arbitrary, RegionSchedule
from fedraa.submodels.tracing.trace import trace_module


def mask_of_regions(chosen: set[int]) -> npt.NDArray[np.bool_]:
    """Return the parameters of a network 3-8-4-2 in these quarters of its hidden units (2 of 8, and 1 of 4).

    The output weights of a hidden unit belong to its quarter. The two output biases are in the quarters 0 and 2.
    """
    first, second = np.array([unit // 2 in chosen for unit in range(8)]), np.array([u in chosen for u in range(4)])
    weights = [np.repeat(first, 3), first, np.repeat(second, 8), second, np.tile(second, 2), second[[0, 2]]]
    return np.concatenate(weights)


@pytest.mark.parametrize("level", ["L", "S", "MIX"])
def test_arbitrary_masks_follow_their_level_and_leave_gaps(net: Traced, level: str) -> None:
    rounds = draws(Arbitrary(level), net, 22)
    for number, choices in enumerate(rounds):
        half = generator(SEED, "levels", number).permutation(CLIENTS)[:3].tolist()
        large = {"L": range(CLIENTS), "S": (), "MIX": half}[level]
        regions = [2 if client in large else 1 for client in range(CLIENTS)]
        masks = np.array([trained(choice) for choice in choices])
        if number == 0:
            assert masks.all()
            continue
        chosen = [{bit for bit in range(4) if choice.label >> bit & 1} for choice in choices]
        assert [len(mine) for mine in chosen] == regions
        for mask, mine in zip(masks, chosen, strict=True):
            np.testing.assert_array_equal(mask == 1, mask_of_regions(mine))
        # All clients train the same region, and no client trains the others.
        if number % 10 == 0:
            most = max(chosen, key=len)
            assert all(mine <= most for mine in chosen)
            np.testing.assert_array_equal(masks.sum(axis=0) == 0, ~mask_of_regions(most))
    # The clients are drawn at random; they are not always the last clients.
    assert {rounds[10][0].label, rounds[20][0].label} != {0b1100, 0b1000}
    assert len({choice.label for choices in rounds for choice in choices}) > 4
    assert [len(set(map(str, [c.label for c in rounds[r]]))) > 1 for r in (1, 2, 3)] == [True] * 3
    never = draws(Arbitrary(level, uncovered_every=0), net, 11)[10]
    assert len({choice.label for choice in never}) > 1


def test_large_clients_and_the_regions_of_a_gap_are_random(net: Traced) -> None:
    halves, gaps = set(), set()
    for seed in range(12):
        second, third = draws(Arbitrary("MIX", uncovered_every=2), net, 4, seed=seed)[1:3]
        halves.add(tuple(bin(choice.label).count("1") for choice in second))
        gaps.add(max(choice.label for choice in third))
    assert len(halves) > 6
    assert len(gaps) > 2
    # Three clients train two regions, and three train one.
    assert {sum(half) for half in halves} == {9}


class Recurrent(nn.Module):
    """An LSTM with an output layer that reads the last state."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.lstm = nn.LSTM(3, width, batch_first=True)
        self.head = nn.Linear(width, 10)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.head(self.lstm(x)[0][:, -1])
        return out


def gated(width: int) -> nn.Module:
    return nn.Sequential(nn.Linear(5, 2 * width), nn.GLU(), nn.Linear(width, 10))


def convolution() -> nn.Module:
    """Return a convolution with 6 channels of 4 pixels each, and an output layer that reads every pixel."""
    return nn.Sequential(nn.Conv2d(1, 6, 3, padding=1), nn.ReLU(), nn.Flatten(), nn.Linear(24, 10))


@pytest.mark.parametrize(
    ("model", "example", "expected"),
    [
        ("mlp", torch.zeros(2, 64), [0.25] * 4),
        ("cnn", torch.zeros(2, 1, 28, 28), [0.25] * 4),
        ("fasttext", torch.zeros(2, 9, dtype=torch.int64), [0.25] * 4),
        (Recurrent(12), torch.zeros(2, 5, 3), [0.25] * 4),
        (gated(16), torch.zeros(2, 5), [0.25] * 4),
        # The regions have 2, 1, 2 and 1 of the 6 channels.
        (convolution(), torch.zeros(2, 1, 2, 2), [1 / 3, 1 / 6, 1 / 3, 1 / 6]),
    ],
    ids=["mlp", "cnn", "fasttext", "lstm", "glu", "six channels"],
)
def test_regions_are_a_partition_of_theta(model: str | nn.Module, example: Tensor, expected: list[float]) -> None:
    """L, S and MIX train 50, 25 and 37.5 % of theta at any depth. Every parameter is in exactly one region."""
    if isinstance(model, str):
        hidden = (64, 64, 64, 64) if model == "mlp" else (200,)
        model = build_model(model, example, 10, hidden=hidden, dropout=0.0, seed=0)
    traced = trace_module(model, example)
    part = hidden_parts(traced, 4)
    shares = np.bincount(part, minlength=4) / traced.size
    assert len(part) == traced.size
    assert part.min() >= 0
    assert shares == pytest.approx(expected, abs=0.02)
    names = [f"{each.rpartition('.')[0]}.weight" for each in traced.names if each.endswith("bias")]
    head = part[: traced.offsets[-1]][traced.offsets[-2] :].reshape(10, -1)
    # The weights of a hidden unit to all classes are in the region of the unit.
    assert (head == head[0]).all()
    # The bias of a unit is in the region of its weights.
    for each in names[:-1]:
        at, bias = traced.names.index(each), traced.names.index(each.replace("weight", "bias"))
        rows = traced.shapes[at][0]
        start, b = traced.offsets[at], traced.offsets[bias]
        weights = part[start : start + int(np.prod(traced.shapes[at]))].reshape(rows, -1)
        assert (weights == weights[:, :1]).all()
        np.testing.assert_array_equal(weights[:, 0], part[b : b + rows])


# The regions of 6 units: unit u is in region 4 * u // 6.
OF_SIX = [0, 0, 1, 2, 2, 3]


def named_regions(model: nn.Module, example: Tensor, parts: int = 4) -> dict[str, npt.NDArray[np.int8]]:
    """Return the region of each parameter by the name of its tensor, in the tensor's shape."""
    traced = trace_module(model, example)
    regions = hidden_parts(traced, parts)
    return {
        name: regions[place].reshape(shape)
        for (name, place), shape in zip(traced.places.items(), traced.shapes, strict=True)
    }


def select_region(model: nn.Module, regions: dict[str, npt.NDArray[np.int8]], region: int) -> None:
    """Set all parameters of the model outside of the region to 0."""
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            parameter.mul_(torch.from_numpy(regions[name] == region))


def test_all_gates_of_a_unit_of_an_lstm_are_in_its_region() -> None:
    """PyTorch stacks the gates: the rows of unit u are u, u + 6, u + 12 and u + 18."""
    x = torch.randn(2, 5, 3, generator=torch.Generator().manual_seed(0))
    regions = named_regions(Recurrent(6), x)
    for name in ("weight_ih_l0", "weight_hh_l0", "bias_ih_l0", "bias_hh_l0"):
        rows = regions[f"lstm.{name}"].reshape(24, -1)
        np.testing.assert_array_equal(rows, np.repeat([OF_SIX * 4], rows.shape[1], axis=0).T)
    np.testing.assert_array_equal(regions["head.weight"], [OF_SIX] * 10)
    # Without one of its gates, the state of a unit would be 0.
    for region in range(4):
        model = Recurrent(6)
        select_region(model, regions, region)
        state = model.lstm(x)[0]
        assert (state != 0).all(dim=(0, 1)).tolist() == [mine == region for mine in OF_SIX]
        assert (state != 0).any(dim=(0, 1)).tolist() == [mine == region for mine in OF_SIX]


def test_both_halves_of_a_gated_linear_unit_are_in_its_region() -> None:
    """Row u of the first layer is the value of unit u, and row u + 6 is its gate."""
    regions = named_regions(gated(6), torch.zeros(2, 5))
    np.testing.assert_array_equal(regions["0.weight"], np.repeat([OF_SIX * 2], 5, axis=0).T)
    np.testing.assert_array_equal(regions["0.bias"], OF_SIX * 2)
    np.testing.assert_array_equal(regions["2.weight"], [OF_SIX] * 10)


def test_all_pixels_of_a_channel_are_in_its_region() -> None:
    regions = named_regions(convolution(), torch.zeros(2, 1, 2, 2))
    np.testing.assert_array_equal(regions["0.bias"], OF_SIX)
    np.testing.assert_array_equal(regions["3.weight"], [np.repeat(OF_SIX, 4)] * 10)
    # Output 9 of 10 is in region 36 // 10.
    np.testing.assert_array_equal(regions["3.bias"], [0, 0, 0, 1, 1, 2, 2, 2, 3, 3])


@pytest.mark.parametrize(("parts", "of_rows"), [(2, [0, 0, 0, 0, 1, 1, 1, 1]), (4, [0, 0, 1, 1, 2, 2, 3, 3])])
def test_queries_keys_and_values_of_a_head_are_divided_equally(parts: int, of_rows: list[int]) -> None:
    """Each of the two heads has 4 rows for its queries, 4 for its keys and 4 for its values.

    With four regions, a head is in two of them. The first two rows of its queries, keys and values are in one region.
    """
    model = nn.TransformerEncoderLayer(8, 2, 16, dropout=0.0, batch_first=True)
    regions = named_regions(model, torch.randn(2, 5, 8), parts)
    np.testing.assert_array_equal(regions["self_attn.in_proj_bias"], of_rows * 3)


@pytest.mark.parametrize(("width", "of_channels"), [(6, [0, 0, 1, 2, 2, 3]), (8, [0, 0, 1, 1, 2, 2, 3, 3])])
def test_channels_of_two_normalized_groups_are_divided_into_four_regions(width: int, of_channels: list[int]) -> None:
    """A cut removes all channels that a GroupNorm normalizes together. A region may have some of these channels."""
    norm = nn.GroupNorm(2, width)
    model = nn.Sequential(nn.Conv2d(1, width, 3, padding=1), norm, nn.ReLU(), nn.Flatten(), nn.Linear(4 * width, 10))
    regions = named_regions(model, torch.randn(2, 1, 2, 2))
    np.testing.assert_array_equal(regions["0.bias"], of_channels)
    np.testing.assert_array_equal(regions["1.weight"], of_channels)


def test_levels_train_their_shares(net: Traced) -> None:
    for level, share in {"L": 0.5, "S": 0.25, "MIX": 0.375}.items():
        rounds = draws(Arbitrary(level, uncovered_every=0), net, 200)[1:]
        mean = np.mean([trained(choice).mean() for choices in rounds for choice in choices])
        assert mean == pytest.approx(share, abs=0.01)


def test_regions_of_units_connect_units_of_both_layers(net: Traced) -> None:
    """A region has 2 of 8 and 1 of 4 units. At S a client trains 3 * 2 + 2 + 2 * 1 + 1 + 1 * 2 + 2 parameters."""
    rounds = draws(Arbitrary("S", uncovered_every=4, regions="units"), net, 60)
    masks = [trained(choice) for choices in rounds[1:] for choice in choices]
    assert {int(mask.sum()) for mask in masks} == {15}
    hidden = [tuple(mask[32:64]) for mask in masks]
    # Regions of the two layers are combined in all ways, so every weight of the matrix is trained at some time.
    assert len(set(hidden)) == 16
    # This round is a gap: all clients train the same region.
    assert len({tuple(trained(choice)) for choice in rounds[4]}) == 1


def test_capacities_set_the_regions_of_a_client_and_its_work(net: Traced) -> None:
    """The capacities 1, .8 and .25 give all, three and one of four regions. The cost is the trained share."""
    policy = Arbitrary(capacities=(1.0, 0.8, 0.25), uncovered_every=0)
    for number, choices in enumerate(draws(policy, net, 12)):
        for client, choice in enumerate(choices):
            regions = 4 if number == 0 else (4, 3, 1)[client % 3]
            if regions == 4:
                assert (choice.mask, choice.work) == (None, 1.0)
            else:
                assert bin(choice.label).count("1") == regions
                assert choice.work == pytest.approx(trained(choice).sum() / SIZE)
                assert choice.sends_mask
    assert {choice.work for choices in draws(Arbitrary("S"), net, 3) for choice in choices} == {1.0}


def test_capacities_and_a_level_are_refused_together() -> None:
    with refuses("capacities"):
        Arbitrary("S", capacities=(0.5,))


def test_mix_that_is_drawn_once_keeps_the_number_of_regions_of_each_client(net: Traced) -> None:
    rounds = draws(Arbitrary("MIX", uncovered_every=0, redraw=False), net, 20)[1:]
    counts = np.array([[bin(choice.label).count("1") for choice in choices] for choices in rounds])
    assert (counts == counts[0]).all()
    assert sorted(counts[0]) == [1, 1, 1, 2, 2, 2]


def test_mix_makes_each_client_large_half_of_the_time(net: Traced) -> None:
    rounds = draws(Arbitrary("MIX", uncovered_every=0), net, 401)[1:]
    large = np.array([[bin(choice.label).count("1") == 2 for choice in choices] for choices in rounds])
    assert (large.sum(axis=1) == 3).all()
    # A client is large in half of 400 rounds, within four standard deviations.
    assert (abs(large.sum(axis=0) - 200) < 4 * np.sqrt(400 / 4)).all()


@pytest.mark.parametrize(
    ("coverage", "trained_regions", "tau", "clients_of_regions"),
    [(1, 4, 4, [7, 1, 1, 1]), (2, 4, 4, [4, 2, 2, 2]), (10, 1, 4, [10]), (1, 4, 31, [7, 1, 1, 1])],
)
def test_region_schedule_sets_coverage_regions_and_longest_wait(
    net: Traced, coverage: int, trained_regions: int, tau: int, clients_of_regions: list[int]
) -> None:
    """Gamma* is the lowest number of clients of a trained region, S* the number of regions, tau the longest wait."""
    rounds = draws(RegionSchedule(coverage, trained_regions, tau), net, 130, clients=10)
    assert all(choice.mask is None for choice in rounds[0])
    labels = np.array([[choice.label for choice in choices] for choices in rounds])
    for choices in labels[1:]:
        assert sorted(np.unique(choices, return_counts=True)[1], reverse=True) == clients_of_regions
    waits = set()
    for client, region in np.ndindex(10, 4):
        turns = [0, *(1 + np.flatnonzero(labels[1:, client] == 1 << region))]
        waits.add(int(np.diff(turns).max()))
    assert max(waits) == tau
    masks = {int(choice.label): trained(choice) for choice in rounds[1]}
    for label, mask in masks.items():
        np.testing.assert_array_equal(mask == 1, mask_of_regions({label.bit_length() - 1}))


@pytest.mark.parametrize(
    ("field", "values"), [("trained", {"trained": 5}), ("tau", {"tau": 3}), ("submodel.coverage", {"coverage": 2})]
)
def test_region_schedule_refuses_impossible_settings(net: Traced, field: str, values: dict[str, int]) -> None:
    with refuses(field):
        RegionSchedule(**values).bind(RunContext(net, 7, SEED))
