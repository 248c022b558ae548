"""Index sets against sizes and members computed by hand."""

from itertools import pairwise

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from refusals import refuses
from torch import nn

from fedraa.submodels import IndexSet, Traced, take_prefix
from fedraa.submodels.indices import (
    count_owners,
    deal_disjoint,
    drop_unowned,
    make_fragments,
    random_units,
    take_window,
    too_small,
)
from fedraa.submodels.tracing.trace import trace_module


def perceptron(*widths: int) -> Traced:
    layers: list[nn.Module] = []
    for first, second in pairwise(widths):
        layers += [nn.Linear(first, second), nn.ReLU()]
    return trace_module(nn.Sequential(*layers[:-1]), torch.zeros(2, widths[0]))


ONE = perceptron(4, 200, 3)
TWO = perceptron(4, 10, 6, 3)


def lists(indices: IndexSet) -> list[list[int]]:
    return [kept.tolist() for kept in indices]


@pytest.mark.parametrize(
    ("ratios", "sizes"),
    # These are the fragments of Fed-RAA's Table 4 on its 200 neurons.
    [
        ((0.4, 0.6), [80, 120]),
        ((0.2, 0.3, 0.5), [40, 60, 100]),
        ((0.1, 0.2, 0.3, 0.4), [20, 40, 60, 80]),
        ((0.05, 0.1, 0.2, 0.3, 0.35), [10, 20, 40, 60, 70]),
    ],
)
def test_fragments_are_contiguous_and_ascending(ratios: tuple[float, ...], sizes: list[int]) -> None:
    cut = make_fragments(ONE, ratios)
    assert [len(kept) for (kept,) in cut] == sizes
    assert np.concatenate([kept for (kept,) in cut]).tolist() == list(range(200))


def test_fragments_round_by_largest_remainder() -> None:
    # 10 units in thirds are 3 + 3 + 3, and the remaining one goes to the first of equal remainders.
    # For 6 units the quotas 0.9, 1.5, 3.6 give 0 + 1 + 3. The remainders 0.9 and 0.6 get the last two.
    thirds = make_fragments(TWO, (1 / 3, 1 / 3, 1 / 3))
    assert [lists(x)[0] for x in thirds] == [[0, 1, 2, 3], [4, 5, 6], [7, 8, 9]]
    assert [len(x[1]) for x in make_fragments(TWO, (0.15, 0.25, 0.6))] == [1, 1, 4]


def test_more_fragments_than_neurons_are_refused() -> None:
    with refuses("fragments", "of 11", "group '0'", "10 units"):
        make_fragments(TWO, [1 / 11] * 11)
    # The widest group decides, also if the first group is narrower.
    with refuses("fragments", "of 11", "group '2'", "10 units"):
        make_fragments(perceptron(4, 6, 10, 3), [1 / 11] * 11)
    with refuses("ratios", got=(0.5, 0.4)):
        make_fragments(TWO, (0.5, 0.4))


def test_prefix_and_window_round_up() -> None:
    # The sizes are ceil(2.5) and ceil(1.5).
    assert lists(take_prefix(TWO, 0.25)) == [[0, 1, 2], [0, 1]]
    # The start is 9 modulo 10 and modulo 6.
    assert lists(take_window(TWO, 0.25, start=9)) == [[0, 1, 9], [3, 4]]
    # 0.3 * 10 counts as 3, not as 3.0000000000000004.
    assert lists(take_prefix(TWO, 0.3)) == [[0, 1, 2], [0, 1]]
    with refuses("ratio", got=0):
        take_prefix(TWO, 0)


def test_rolling_windows_cover_every_unit_equally_often() -> None:
    seen = np.bincount(np.concatenate([take_window(TWO, 0.3, start)[0] for start in range(10)]))
    assert seen.tolist() == [3] * 10


@given(st.integers(1, 6), st.integers(0, 1000))
def test_disjoint_parts_deal_out_every_unit_once(parts: int, seed: int) -> None:
    cut = deal_disjoint(TWO, parts, np.random.default_rng(seed))
    for g, size in enumerate((10, 6)):
        dealt = [part[g] for part in cut]
        assert sorted(np.concatenate(dealt)) == list(range(size))
        assert {len(x) for x in dealt} <= {size // parts, -(-size // parts)}
        assert all((np.diff(x) > 0).all() for x in dealt)


def test_groups_are_shuffled_independently() -> None:
    traced = perceptron(4, 50, 50, 3)
    first, second = deal_disjoint(traced, 2, np.random.default_rng(0))[0]
    assert first.tolist() != second.tolist()
    first, second = random_units(traced, 0.5, np.random.default_rng(0))
    assert len(first) == len(second) == 25
    assert first.tolist() != second.tolist()


def test_count_owners_of_fragments_equals_the_counts_by_hand() -> None:
    # Widths 4-10-6-3 are halved into blocks of 5 and 3. The first matrix, both hidden biases and the last matrix
    # have one owner. In the middle 6 x 10 matrix the two diagonal 3 x 5 blocks have one owner, the others none.
    # The output bias (3) belongs to all index sets.
    counts = count_owners(TWO, make_fragments(TWO, (0.5, 0.5)))
    assert (counts == 1).sum() == 10 * 4 + 10 + 2 * 15 + 6 + 3 * 6
    assert (counts == 0).sum() == 30
    assert (counts == 2).sum() == 3
    assert counts[-3:].tolist() == [2, 2, 2]
    middle = counts[50:110].reshape(6, 10)
    assert (middle == np.kron(np.eye(2, dtype=int), np.ones((3, 5), dtype=int))).all()


def test_owners_count_repeated_index_sets() -> None:
    assert count_owners(ONE, [ONE.full()] * 1000).tolist() == [1000] * ONE.size


def test_a_group_that_is_too_small_for_the_fragments_is_whole_in_all_of_them() -> None:
    layers = [nn.Linear(4, 2), nn.ReLU(), nn.Linear(2, 6), nn.ReLU(), nn.Linear(6, 2)]
    traced = trace_module(nn.Sequential(*layers), torch.zeros(2, 4))
    parts = make_fragments(traced, (0.3, 0.3, 0.4))
    assert [[kept.tolist() for kept in part] for part in parts] == [
        [[0, 1], [0, 1]],
        [[0, 1], [2, 3]],
        [[0, 1], [4, 5]],
    ]
    assert [group.name for group in too_small(traced, parts)] == ["0"]


def test_units_keep_the_norm_of_their_initial_weights() -> None:
    """In TWO, only the matrix [6, 10] has weights between the fragments of 3 and 2, and of 7 and 4 units."""
    parts = ((np.arange(3), np.arange(2)), (np.arange(3, 10), np.arange(2, 6)))
    before = np.random.default_rng(0).normal(size=TWO.size).astype(np.float32)
    plain, kept = before.copy(), before.copy()
    drop_unowned(plain, TWO, parts, keep_norms=False)
    drop_unowned(kept, TWO, parts, keep_norms=True)
    place = TWO.places["2.weight"]
    inner = np.zeros((6, 10), np.float32)
    inner[:2, :3] = before[place].reshape(6, 10)[:2, :3]
    inner[2:, 3:] = before[place].reshape(6, 10)[2:, 3:]
    np.testing.assert_array_equal(plain[place].reshape(6, 10), inner)
    full = np.linalg.norm(before[place].reshape(6, 10).astype(np.float64), axis=1)
    stretch = full / np.linalg.norm(inner.astype(np.float64), axis=1)
    np.testing.assert_allclose(kept[place].reshape(6, 10), inner * stretch[:, None], rtol=1e-6)
    for vector in (plain, kept):
        np.testing.assert_array_equal(np.delete(vector, place), np.delete(before, place))
    # Without weights between fragments, and with rows of zeros, nothing changes.
    plain[place].reshape(6, 10)[0] = 0
    again = plain.copy()
    drop_unowned(again, TWO, parts, keep_norms=True)
    np.testing.assert_array_equal(again, plain)
