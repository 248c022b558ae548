"""Cuts of chains of plain layers: shapes, flat layout, write-back, refusals."""

import pickle
from collections.abc import Callable

import numpy as np
import pytest
import torch
from refusals import refuses
from torch import nn

from fedraa.submodels import Traced, flatten_parameters, load_parameters
from fedraa.submodels.tracing.trace import trace_module


def mlp() -> nn.Module:
    return nn.Sequential(nn.Linear(4, 3), nn.ReLU(), nn.Linear(3, 2))


@pytest.fixture
def traced_mlp() -> Traced:
    torch.manual_seed(0)
    return trace_module(mlp(), torch.randn(2, 4))


def lenet() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(3, 6, 5),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Conv2d(6, 16, 5),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Linear(400, 120),
        nn.ReLU(),
        nn.Dropout(0.5),
        nn.Linear(120, 84),
        nn.ReLU(),
        nn.Linear(84, 10),
    )


def test_mlp_has_one_group_with_its_hidden_units(traced_mlp: Traced) -> None:
    (group,) = traced_mlp.groups
    assert (group.name, group.size) == ("0", 3)
    assert [(e.tensor, e.dim, e.block) for e in group.entries] == [
        ("0.weight", 0, 1),
        ("0.bias", 0, 1),
        ("2.weight", 1, 1),
    ]
    # These are all parameters except the output bias.
    assert group.parameters == 3 * 4 + 3 + 2 * 3
    assert traced_mlp.uncut == {"2": "2 stays whole: it is the output of the model."}


def test_flat_index_of_an_mlp_equals_the_positions_by_hand(traced_mlp: Traced) -> None:
    # The layout is 0.weight [3, 4] at 0, 0.bias [3] at 12, 2.weight [2, 3] at 15, and 2.bias [2] at 21.
    assert traced_mlp.offsets == (0, 12, 15, 21)
    assert traced_mlp.size == 23
    got = traced_mlp.flat_index((np.array([0, 2]),))
    assert got.tolist() == [0, 1, 2, 3, 8, 9, 10, 11, 12, 14, 15, 17, 18, 20, 21, 22]


def test_a_channel_runs_through_flatten_as_a_block() -> None:
    traced = trace_module(lenet(), torch.randn(2, 3, 32, 32))
    assert [group.size for group in traced.groups] == [6, 16, 120, 84]
    blocks = {(e.tensor, e.dim): e.block for e in traced.groups[1].entries}
    assert blocks == {("3.weight", 0): 1, ("3.bias", 0): 1, ("7.weight", 1): 25}


def test_cut_has_a_copy_of_its_slice_of_the_model() -> None:
    torch.manual_seed(0)
    traced = trace_module(lenet(), torch.randn(2, 3, 32, 32))
    indices = (np.array([1, 4]), np.array([0, 2, 15]), np.arange(50), np.arange(3, 84))
    small = traced.cut(indices)
    assert traced.widths(indices) == (2, 3, 50, 81)
    assert small(torch.randn(5, 3, 32, 32)).shape == (5, 10)
    theta = flatten_parameters(traced.module)
    np.testing.assert_array_equal(flatten_parameters(small), theta[traced.flat_index(indices)])
    load_parameters(small, np.zeros(len(flatten_parameters(small)), np.float32))
    np.testing.assert_array_equal(flatten_parameters(traced.module), theta)
    assert [type(x) for x in small.modules()] == [type(x) for x in traced.module.modules()]
    assert (small[7].in_features, small[7].out_features) == (75, 50)


def test_a_skeleton_has_the_shape_of_any_cut_of_its_widths() -> None:
    traced = trace_module(lenet(), torch.randn(2, 3, 32, 32))
    indices = (np.array([1, 4]), np.array([0, 2, 15]), np.arange(70, 120), np.arange(84))
    small, skeleton = traced.cut(indices), traced.make_skeleton((2, 3, 50, 84))
    load_parameters(skeleton, flatten_parameters(small))
    x = torch.randn(2, 3, 32, 32)
    assert torch.equal(skeleton.eval()(x), small.eval()(x))


def test_a_traced_module_survives_pickling(traced_mlp: Traced) -> None:
    again = pickle.loads(pickle.dumps(traced_mlp))
    assert again.groups == traced_mlp.groups
    np.testing.assert_array_equal(flatten_parameters(again.module), flatten_parameters(traced_mlp.module))
    np.testing.assert_array_equal(again.flat_index(again.full()), np.arange(23))


def test_frozen_parameters_are_neither_cut_nor_in_the_flat_vector() -> None:
    module = nn.Sequential(nn.Linear(4, 3), nn.ReLU(), nn.Linear(3, 5), nn.ReLU(), nn.Linear(5, 2))
    module[0].requires_grad_(False)
    traced = trace_module(module, torch.randn(2, 4))
    assert [group.name for group in traced.groups] == ["2"]
    assert traced.names == ("2.weight", "2.bias", "4.weight", "4.bias")
    assert "frozen" in traced.uncut["0"]


@pytest.mark.parametrize("kept", [[], [0, 3], [-1, 1], [1, 1], [2, 0]])
def test_impossible_index_sets_are_refused(traced_mlp: Traced, kept: list[int]) -> None:
    for use in (traced_mlp.cut, traced_mlp.flat_index, traced_mlp.widths):
        with refuses("indices of group '0'", got=kept):
            use((np.array(kept, dtype=np.int64),))
    with refuses("indices", "2 arrays"):
        traced_mlp.cut((np.arange(1), np.arange(1)))


@pytest.mark.parametrize("kept", [[0.2, 1.9], [False, True], [[0, 1]]])
def test_refuses_units_that_are_no_whole_numbers(traced_mlp: Traced, kept: list[object]) -> None:
    with refuses("indices of group '0'", got=kept):
        traced_mlp.count((np.array(kept),))


def test_index_sets_may_be_lists_or_other_integers(traced_mlp: Traced) -> None:
    expected = traced_mlp.flat_index((np.array([0, 2]),)).tolist()
    for kept in ([0, 2], range(0, 3, 2), np.array([0, 2], np.uint8)):
        assert traced_mlp.flat_index((kept,)).tolist() == expected  # type: ignore[arg-type]


def test_vector_of_another_length_is_refused() -> None:
    with refuses("vector", "[3]", "23"):
        load_parameters(mlp(), np.zeros(3, np.float32))


def test_examples_that_do_not_run_are_refused() -> None:
    with refuses("example", "[2, 5] of float32"):
        trace_module(mlp(), torch.randn(2, 5))
    with refuses("example", "[1, 4]", "2"):
        trace_module(mlp(), torch.randn(1, 4))


class ConvertsToFloat32(nn.Module):
    """A module whose code requests float32, so that it does not run in float64."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = nn.Linear(4, 6), nn.Linear(6, 2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.b(self.a(x.float()).relu())


def test_code_that_converts_to_float32_is_traced() -> None:
    assert [group.size for group in trace_module(ConvertsToFloat32(), torch.randn(2, 4)).groups] == [6]


class Branching(nn.Module):
    def __init__(self, branches: Callable[[torch.Tensor], object]) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 2)
        self.branches = branches

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.linear(x) if self.branches(x) else self.linear(-x)


@pytest.mark.parametrize(
    "branches",
    [
        lambda x: x.sum() > 0,
        lambda x: x[0, 0].item() > 0,
        lambda x: int(x[0, 0]) + float(x[0, 0]) > 0,
        lambda x: x.detach().numpy().sum() > 0,
        lambda x: 0.0 in x,
    ],
)
def test_control_flow_that_depends_on_data_is_refused(branches: Callable[[torch.Tensor], object]) -> None:
    with refuses("module", "Branching"):
        trace_module(Branching(branches), torch.randn(2, 4))


def test_flat_index_caches_only_the_last_results() -> None:
    traced = trace_module(nn.Sequential(nn.Linear(4, 20), nn.ReLU(), nn.Linear(20, 2)), torch.randn(2, 4))
    assert not traced._flat
    first = traced.flat_index((np.arange(1),))
    assert traced.flat_index((np.arange(1),)) is first
    for width in range(2, 20):
        traced.flat_index((np.arange(width),))
    assert len(traced._flat) == 8
    np.testing.assert_array_equal(traced.flat_index((np.arange(1),)), first)
