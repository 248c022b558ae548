"""The submodels of each policy: sizes, coverage, fairness over rounds, bytes, and errors."""

from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from policy_draws import FIRST, SECOND, SEED, SIZE, THETA, draws, round_context, trained
from refusals import refuses
from tiny import Stepped, spec
from torch import nn

from fedraa import Experiment
from fedraa.engine.build import build_run
from fedraa.models import build_model
from fedraa.submodels import Traced
from fedraa.submodels.assignment import Assignment
from fedraa.submodels.blocks import find_maskable_names, find_removable_blocks
from fedraa.submodels.policies.masked import FourWay, Pruned, rank_parts
from fedraa.submodels.policies.policy import Capacities, RoundContext, RunContext
from fedraa.submodels.policies.shuffled import Bernoulli, ShuffledBlocks
from fedraa.submodels.policies.slices import DisjointGroups, Prefix, Rolling
from fedraa.submodels.tracing.trace import trace_module

# These are all coordinates except the output bias.
MASKED = SIZE - 2
FULL = (FIRST, SECOND)


def units(choice: Assignment) -> tuple[list[int], list[int]]:
    """Return the hidden units of both layers whose bias is trained."""
    mask = trained(choice)
    return np.flatnonzero(mask[24:32]).tolist(), np.flatnonzero(mask[64:68]).tolist()


@given(ratio=st.floats(0.01, 1), start=st.integers(0, 50))
@settings(max_examples=25)
def test_prefixes_and_windows_keep_the_rounded_up_share_of_units(net: Traced, ratio: float, start: int) -> None:
    sizes = [int(np.ceil(np.round(ratio * size, 9))) for size in FULL]
    [[prefix]] = draws(Prefix(Capacities((ratio,))), net, 1, clients=1)
    assert units(prefix) == tuple([*range(size)] for size in sizes)
    run = RunContext(net, 1, SEED)
    window = Rolling(Capacities((ratio,))).bind(run).draw(round_context(run, 0, start))
    expected = tuple(sorted((start + i) % whole for i in range(size)) for size, whole in zip(sizes, FULL, strict=True))
    assert units(window) == expected


def test_windows_roll_by_the_stride_and_cover_each_unit_equally_often(net: Traced) -> None:
    """FedRolex: after K rounds a client of rate r has had each of K units r K times."""
    rates = (1.0, 0.5, 0.25)
    count = {rate: np.zeros(12, int) for rate in rates}
    for choices in draws(Rolling(Capacities(rates)), net, FIRST, clients=3):
        for rate, choice in zip(rates, choices, strict=True):
            first, second = units(choice)
            count[rate][first] += 1
            count[rate][[8 + unit for unit in second]] += 1
    for rate in rates:
        # The window passes twice over the layer of 4 units.
        assert count[rate].tolist() == [rate * FIRST] * 12
    strided = draws(Rolling(Capacities((0.25,)), stride=3), net, 3, clients=1)
    assert [units(choice) for [choice] in strided] == [([0, 1], [0]), ([3, 4], [3]), ([6, 7], [2])]


def test_capacities_are_assigned_in_turn_or_redrawn_each_round() -> None:
    levels = (1.0, 0.5, 0.25)
    fixed, redrawn = Capacities(levels), Capacities(levels, redraw=True)
    for round in (0, 7):
        assert [fixed.of(n, round, SEED) for n in range(5)] == [1.0, 0.5, 0.25, 1.0, 0.5]
    drawn = np.array([[redrawn.of(n, r, SEED) for n in range(10)] for r in range(60)])
    assert not (drawn == drawn[0]).all(axis=1)[1:].any()
    # The number is a third of 600, within four standard deviations.
    for level in levels:
        assert abs((drawn == level).sum() - 200) < 4 * np.sqrt(600 * 2 / 9)
    assert redrawn.of(3, 4, SEED) == drawn[4, 3]


@given(clients=st.integers(1, 4), seed=st.integers(0, 1000))
@settings(max_examples=20)
def test_disjoint_groups_contain_every_unit_once(net: Traced, clients: int, seed: int) -> None:
    for choices in draws(DisjointGroups(), net, 2, clients, seed):
        for layer, size in enumerate(FULL):
            groups = [units(choice)[layer] for choice in choices]
            assert sorted(unit for group in groups for unit in group) == [*range(size)]
            assert {len(group) for group in groups} <= {size // clients, -(-size // clients)}


def test_disjoint_groups_differ_between_rounds(net: Traced) -> None:
    rounds = [tuple(map(str, map(units, choices))) for choices in draws(DisjointGroups(), net, 6, clients=2)]
    assert len(set(rounds)) > 4


@pytest.mark.parametrize("kernels", [False, True])
def test_bernoulli_redraws_its_share_in_each_round(net: Traced, kernels: bool) -> None:
    choices = draws(Bernoulli(Capacities((0.5, 0.25)), kernels), net, 20)
    masks = np.array([[trained(choice) for choice in round] for round in choices])
    assert len(np.unique(masks.reshape(-1, SIZE), axis=0)) > 60
    for n in range(2):
        p, mine = (0.5, 0.25)[n], masks[:, n::2]
        if kernels:
            assert {tuple(map(len, units(c))) for round in choices for c in round[n::2]} == {(8 * p, 4 * p)}
            # The output bias is always whole.
            assert mine[..., -2:].all()
        else:
            assert abs(mine.mean() - p) < 4 * np.sqrt(p * (1 - p) / mine.size)


@given(r=st.sampled_from([1.0, 0.6, 0.5, 0.34, 0.25]), seed=st.integers(0, 1000), shuffled=st.booleans())
@settings(max_examples=25)
def test_each_block_is_trained_once_per_cycle(net: Traced, r: float, seed: int, shuffled: bool) -> None:
    """The coordinates are divided into B = ceil(1/r) blocks. Clients of one capacity train the same block."""
    count = int(np.ceil(1 / r))
    policy = ShuffledBlocks(Capacities((r,)), shuffled=shuffled)
    rounds = draws(policy, net, 3 * count, clients=2, seed=seed)
    for cycle in range(3):
        mine = rounds[cycle * count :][:count]
        assert sorted(choices[0].label for choices in mine) == [*range(count)]
        assert shuffled or [choices[0].label for choices in mine] == [*range(count)]
        masks = [trained(choices[0]) for choices in mine]
        assert (np.sum(masks, axis=0) == 1).all()
        assert {int(mask.sum()) for mask in masks} <= {SIZE // count, -(-SIZE // count)}
        for one, two in mine:
            np.testing.assert_array_equal(trained(one), trained(two))


@pytest.mark.parametrize("shuffled", [True, False])
def test_kernel_blocks_cover_units_each_cycle_and_every_weight_eventually(net: Traced, shuffled: bool) -> None:
    """A weight between the hidden layers is trained when the blocks of both its ends meet."""
    rounds = draws(ShuffledBlocks(Capacities((0.5,)), kernels=True, shuffled=shuffled), net, 16, clients=1)
    for cycle in range(8):
        for layer, size in enumerate(FULL):
            mine = [unit for [choice] in rounds[2 * cycle :][:2] for unit in units(choice)[layer]]
            assert sorted(mine) == [*range(size)]
    assert np.sum([trained(choice) for [choice] in rounds], axis=0).min() > 0


def test_each_capacity_has_separate_cycles(net: Traced) -> None:
    """The capacities 1/2 and 1/4 have separate orders in each cycle. Four blocks have 24 orders."""
    rounds = draws(ShuffledBlocks(Capacities((0.5, 0.25))), net, 48, clients=4)
    labels = np.array([[choice.label for choice in choices] for choices in rounds])
    np.testing.assert_array_equal(labels[:, :2], labels[:, 2:])
    assert len(np.unique(labels[:, 0].reshape(24, 2), axis=0)) == 2
    assert len(np.unique(labels[:, 1].reshape(12, 4), axis=0)) > 6


def test_subdismo_clients_train_one_or_two_of_four_random_parts(net: Traced) -> None:
    """All clients have the same split in a round.

    Half of them train one part, the others two. The head is always trained.
    """
    for choices in draws(FourWay(), net, 3):
        masks = np.array([trained(choice) for choice in choices])
        assert masks[:, MASKED:].all()
        # 76 coordinates are divided into quarters of 19.
        assert masks[:, :MASKED].sum(axis=1).tolist() == [19] * 3 + [38] * 3
        singles = {tuple(mask) for choice, mask in zip(choices, masks, strict=True) if choice.label in (1, 2, 4, 8)}
        assert len(singles) == len({choice.label for choice in choices if choice.label in (1, 2, 4, 8)})
    both = draws(FourWay(), net, 2, clients=40)
    for choices in both:
        quarters = {choice.label: trained(choice)[:MASKED] for choice in choices[:20]}
        assert (np.sum([*quarters.values()], axis=0) == 1).all()
        for choice in choices[20:]:
            parts = [quarters[1 << bit] for bit in range(4) if choice.label >> bit & 1]
            np.testing.assert_array_equal(trained(choice)[:MASKED], np.sum(parts, axis=0))
    assert (trained(both[0][0]) != trained(both[1][0])).any()


@pytest.fixture(scope="module")
def transformer() -> tuple[Traced, torch.Tensor]:
    images = torch.zeros(2, 3, 32, 32)
    return trace_module(build_model("vit-small", images, 10, seed=0), images), images


@pytest.mark.parametrize("form", ["blocks", "units", "elements"])
def test_subdismo_parts_have_the_sizes_and_costs_of_the_paper(
    transformer: tuple[Traced, torch.Tensor], form: str
) -> None:
    """SubDisMO's Table 7: a part is a quarter of 133,120 parameters; one and two blocks take .309 and .539 FLOPs."""
    traced, images = transformer
    run = RunContext(traced, 10, SEED, example=images)
    sampler = FourWay(form=form).bind(run)
    outside = traced.size - 133_120
    labels = set()
    for number, client in np.ndindex(3, 10):
        params = np.zeros(traced.size, np.float32)
        choice = sampler.draw(RoundContext(client, number, client, 10, 0.0, params, run))
        parts = 1 if client < 5 else 2
        labels.add(choice.label)
        assert bin(choice.label).count("1") == parts
        if form == "units":
            # A quarter of the heads and hidden neurons of every block; norms and output biases stay.
            heads, hidden = 8 * parts // 4, 128 * parts // 4
            assert choice.submodel.widths == (heads, hidden) * 4
            assert (choice.mask, choice.work) == (None, 1.0)
            continue
        assert choice.mask is not None
        assert choice.mask.sum() == outside + 33_280 * parts
        if form == "blocks":
            present = [bool(choice.mask[i]) for i in 13_504 + 33_280 * np.arange(4)]
            assert sum(present) == parts
            assert choice.work == pytest.approx({1: 103.809 / 336.102, 2: 181.24 / 336.102}[parts], abs=2e-3)
    assert len(labels) > 5


def test_masked_block_equals_a_model_without_the_block(transformer: tuple[Traced, torch.Tensor]) -> None:
    traced, images = transformer
    run = RunContext(traced, 2, SEED, example=images)
    choice = FourWay(form="blocks").bind(run).draw(round_context(run, 0, 0))
    assert choice.mask is not None
    module = build_model("vit-small", images, 10, seed=1).eval()
    x = torch.randn(2, 3, 32, 32)
    flat = torch.nn.utils.parameters_to_vector(module.parameters()) * torch.tensor(choice.mask)
    kept = [block for number, block in enumerate(module.blocks) if choice.mask[13_504 + 33_280 * number]]
    short = build_model("vit-small", images, 10, seed=1).eval()
    torch.nn.utils.vector_to_parameters(flat, short.parameters())
    module.blocks = nn.Sequential(*kept)
    torch.testing.assert_close(short(x), module(x))


def test_blocks_with_frozen_parameters_are_not_removable() -> None:
    images = torch.zeros(2, 3, 32, 32)
    module = build_model("vit-small", images, 10, seed=0)
    for parameter in module.get_submodule("blocks.0").parameters():
        parameter.requires_grad = False
    traced = trace_module(module, images)
    before = traced.module.get_parameter("blocks.0.norm1.weight").clone()
    assert [block.name for block in find_removable_blocks(traced, images)] == ["blocks.1", "blocks.2", "blocks.3"]
    assert torch.equal(traced.module.get_parameter("blocks.0.norm1.weight"), before)


def test_subdismo_blocks_need_residual_connections(net: Traced) -> None:
    with refuses("submodel"):
        FourWay(form="blocks").bind(RunContext(net, 2, SEED, example=torch.zeros(2, 3)))


@given(st.lists(st.floats(-5, 5, width=32), min_size=SIZE, max_size=SIZE, unique_by=abs), st.integers(1, 5))
@settings(max_examples=20)
def test_parts_follow_the_rank_of_magnitudes(net: Traced, values: list[float], parts: int) -> None:
    """Every value of part p is larger than every value of part p - 1 in its tensor, and parts are equal in size."""
    params = np.array(values, np.float32)
    part = rank_parts(net, params, find_maskable_names(net), parts)
    assert (part[MASKED:] == -1).all()
    for start, end in [(0, 24), (24, 32), (32, 64), (64, 68), (68, 76)]:
        size, mine, ours = np.abs(params[start:end]), part[start:end], end - start
        for p in range(parts):
            assert (mine == p).sum() in (ours // parts, -(-ours // parts))
            assert size[mine < p].max(initial=0) <= size[mine >= p].min(initial=9)


def test_oap_keeps_the_largest_quarters_of_every_tensor(net: Traced) -> None:
    [choices] = draws(Pruned(Capacities((1.0, 0.75, 0.5))), net, 1)
    for choice, kept in zip(choices, [1, 0.75, 0.5] * 2, strict=True):
        mask = trained(choice)
        for start, end in [(0, 24), (24, 32), (32, 64), (64, 68), (68, 76)]:
            order = np.argsort(-np.abs(THETA[start:end]))[: round(kept * (end - start))]
            assert np.flatnonzero(mask[start:end]).tolist() == sorted(order)
        assert mask[MASKED:].all()


def test_masks_are_drawn_over_the_encoder_blocks_of_the_vit() -> None:
    """SubDisMO's Table 7: 133,120 masked parameters."""
    net = trace_module(build_model("vit-small", torch.zeros(2, 3, 32, 32), 10), torch.zeros(2, 3, 32, 32))
    names = find_maskable_names(net)
    sizes = dict(zip(net.names, (int(np.prod(shape)) for shape in net.shapes), strict=True))
    assert sum(sizes[name] for name in names) == 133_120
    assert {name.split(".")[0] for name in names} == {"blocks"}
    assert len({name.split(".")[1] for name in names}) == 4


@pytest.mark.parametrize(
    ("method", "flags", "down", "up"),
    [
        # 40 of the 44 parameters can be masked. A bitmap of 44 bits has 6 bytes.
        ("fedavg", {}, 176, 176),
        ("heterofl", {"capacities": (0.4,)}, 4 * (2 * 3 + 2 + 4 * 2 + 4), 4 * 20),
        # Of 15, 5 and 20 values the upper halves begin at the ranks 7.5, 2.5 and 10.
        ("oap", {"capacities": (0.5,)}, 4 * (7 + 2 + 10 + 4) + 6, 4 * (7 + 2 + 10 + 4) + 6),
        # The client applies the mask: 40 / 4 values and 4 that are always trained.
        ("subdismo", {}, 176, 4 * 14 + 6),
        ("shuffled", {"capacities": (0.5,)}, 4 * 22 + 6, 4 * 22 + 6),
    ],
)
def test_bytes_of_a_task_count_values_and_bitmap(method: str, flags: dict[str, Any], down: int, up: int) -> None:
    system = Stepped(spec(method, **flags))
    system.round()
    assert system.records.of("dispatch")[0]["bytes_down"] == down
    first = next(line for line in system.records.of("commit") if line["client"] == 0)
    assert first["bytes_up"] == up


@pytest.mark.parametrize(
    ("flags", "field", "got", "shown"),
    [
        ({"method": "ist", "clients": 6}, "clients", 6, "group '1' has only 5"),
        ({"method": "shuffled-kernels", "capacities": (1.0, 0.15)}, "capacities", 0.15, "group '1' has only 5"),
        ({"method": "shuffled", "capacities": (0.01,)}, "capacities", 0.01, "44"),
        # The smallest weight matrix has 15 values. A client would train less than one of them.
        ({"method": "shuffled", "capacities": (0.05,)}, "capacities", 0.05, "15 weights of '1.weight'"),
        ({"method": "bernoulli", "capacities": (1.0, 0.05)}, "capacities", 0.05, "15 weights of '1.weight'"),
        (
            {"method": "oap", "capacities": (0.05,), "override": {"submodel.parts": 20}},
            "capacities",
            0.05,
            "15 weights of '1.weight'",
        ),
        ({"method": "subdismo", "override": {"submodel.parts": 16}}, "submodel.parts", 16, "15 weights of '1.weight'"),
        ({"method": "ra-fed", "override": {"submodel.parts": 16}}, "submodel.parts", 16, "15 weights of '1.weight'"),
        ({"method": "oap", "capacities": (1.0, 0.6)}, "capacities", 0.6, "0.75"),
        ({"method": "heterofl", "capacities": ()}, "capacities", (), "over 0"),
    ],
)
def test_setting_that_does_not_fit_the_model_is_refused(
    flags: dict[str, Any], field: str, got: object, shown: str
) -> None:
    with refuses(field, shown, got=got):
        spec(**flags)


@pytest.mark.parametrize(
    "flags",
    [
        {"method": "shuffled", "capacities": (1 / 15,)},
        {"method": "bernoulli", "capacities": (1 / 15,)},
        {"method": "subdismo", "override": {"submodel.parts": 15}},
        {"method": "ra-fed", "override": {"submodel.parts": 15}},
    ],
)
def test_a_mask_with_one_weight_of_the_smallest_layer_is_accepted(flags: dict[str, Any]) -> None:
    spec(**flags)


def test_ist_needs_units_only_for_the_clients_of_a_round() -> None:
    spec("ist", clients=6, participation="sample:5")


@pytest.mark.parametrize(
    "method",
    [
        "ist",
        "heterofl",
        "fedrolex",
        "bernoulli-kernels",
        "shuffled-kernels",
        "ra-fed-units",
        "oap",
        "subdismo",
        "prunefl",
    ],
)
def test_a_model_without_units_is_refused(method: str) -> None:
    dataset = spec("fedavg").data.dataset
    linear = nn.Sequential(nn.Flatten(), nn.Linear(3, 4))
    verb = (
        "cut" if method in ("ist", "heterofl", "fedrolex", "ra-fed-units") or method.endswith("kernels") else "masked"
    )
    with refuses("model", "Sequential", f" {verb}: "):
        build_run(Experiment(method=method, clients=3, engine="local"), model=linear, dataset=dataset)
