"""Robust aggregators against fixtures that were computed with NumPy, and against second computations here."""

from itertools import combinations

import numpy as np
import pytest

from fedraa.aggregation.aggregator import ClientDelta, RoundTotals
from fedraa.aggregation.registry import AGGREGATOR
from fedraa.aggregation.robust.krum import square_distances
from fedraa.aggregation.robust.rows import RobustAggregator
from fedraa.components.state import save_state
from fedraa.vectors.delta_view import DeltaView

# Six honest deltas and one of an attacker.
X = [(1.1, 0.9), (1.4, 1.1), (0.7, 1.2), (1.8, 1.6), (0.6, 0.2), (0.6, 1.0), (-4.0, 6.0)]
N = np.nan


def bound(text: str, size: int = 2) -> RobustAggregator:
    aggregator = AGGREGATOR.resolve(text).bind(size, 100)
    assert isinstance(aggregator, RobustAggregator)
    return aggregator


def add_rows(
    aggregator: RobustAggregator,
    rows: list[tuple[float, ...]],
    *,
    weights: list[float] | None = None,
    clients: list[int] | None = None,
    fragments: list[int | None] | None = None,
) -> None:
    """Add a delta for each row. NaN marks a coordinate that the client did not train."""
    for i, row in enumerate(rows):
        values = np.array(row, np.float32)
        where = np.flatnonzero(~np.isnan(values))
        aggregator.add(
            ClientDelta(
                i if clients is None else clients[i],
                DeltaView(where, values[where]),
                1.0 if weights is None else weights[i],
                0.1,
                fragment=None if fragments is None else fragments[i],
            )
        )


def combine(text: str, rows: list[tuple[float, ...]], **options: object) -> np.ndarray:
    """Return the combined delta, NaN on the coordinates that do not move."""
    aggregator = bound(text, len(rows[0]))
    add_rows(aggregator, rows, **options)  # type: ignore[arg-type]
    delta, moved = aggregator.finish(RoundTotals(np.zeros(len(rows[0]), np.int32), 0.1))
    assert delta.dtype == np.float32
    return np.where(moved, delta, np.nan)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("median", (0.7, 1.1)),
        ("trimmed-mean(trim=0.2)", (0.88, 1.16)),
        ("trimmed-mean(trim=0.29)", (0.8, 1.1)),
        ("krum(attackers=1)", (1.1, 0.9)),
        ("multi-krum(attackers=1)", (1.03333333, 1.0)),
        ("multi-krum(attackers=1, selected=3)", (1.03333333, 1.0)),
        ("bulyan(attackers=1)", (1.06666667, 1.1)),
        ("geometric-median(iterations=3)", (0.81770338, 1.09655594)),
        ("geometric-median(iterations=4)", (0.82396061, 1.09003198)),
        ("geometric-median(iterations=1000)", (0.84520471, 1.08116799)),
        ("centred-clipping(radius=1.0)", (0.48162165, 0.66696361)),
        ("centred-clipping(radius=1.0, iterations=3)", (0.87844409, 1.09222924)),
        ("norm-bound(max_norm=1.5)", (0.63836303, 0.92447908)),
    ],
)
def test_rule_on_seven_clients_equals_the_fixture(text: str, expected: tuple[float, float]) -> None:
    np.testing.assert_allclose(combine(text, X), expected, rtol=2e-6)


def test_fltrust_equals_the_fixture_and_ignores_an_opposite_delta() -> None:
    trusted = (1.0, 0.5)
    np.testing.assert_allclose(combine("fltrust(root=0)", [trusted, *X]), (0.80821989, 0.72463447), rtol=2e-6)


def test_fltrust_moves_nothing_without_the_root_or_without_a_similar_delta() -> None:
    assert np.isnan(combine("fltrust(root=9)", X)).all()
    assert np.isnan(combine("fltrust(root=0)", [(1.0, 0.0), (-1.0, 0.0), (-2.0, 0.1), (0.0, 0.0)])).all()


def test_krum_scores_equal_the_fixture() -> None:
    rows = [np.array(row, np.float32) for row in X]
    scores = np.sort(square_distances(rows), axis=1)[:, :4].sum(axis=1)
    np.testing.assert_allclose(scores, [1.38, 1.69, 1.81, 4.56, 3.84, 1.6, 196.31], rtol=1e-6)


@pytest.mark.parametrize(("count", "selected"), [(1, [0]), (2, [0, 5]), (4, [0, 5, 1, 2]), (5, [0, 5, 1, 2, 4])])
def test_multi_krum_selects_in_the_order_of_the_fixture(count: int, selected: list[int]) -> None:
    expected = np.mean([X[i] for i in selected], axis=0)
    np.testing.assert_allclose(combine(f"multi-krum(selected={count})", X), expected, rtol=2e-6)


def test_bulyan_selects_deltas_one_after_another() -> None:
    # A variant that selects all deltas in one step takes 0, 5, 1, 2 and 4, and would return (0.63333333, 1.0).
    assert not np.allclose(combine("bulyan", X), (0.63333333, 1.0))


def test_bulyan_does_not_select_an_attacker_with_the_lowest_client_number() -> None:
    rows = [(-4.0, 6.0), *X[:6]]
    assert combine("bulyan", rows)[0] > 0.5


def test_median_counts_only_the_clients_that_trained_a_coordinate() -> None:
    rows = [(1, 2, N), (3, 4, 6), (2, N, 8), (100, 100, N)]
    np.testing.assert_array_equal(combine("median(min_coverage=1)", rows), (2.5, 4, 7))


def test_a_coordinate_that_two_clients_trained_keeps_its_value_and_is_counted() -> None:
    rows = [(1, 2, N, N), (3, 4, 6, N), (2, N, 8, N), (100, 100, N, N)]
    aggregator = bound("median", 4)
    add_rows(aggregator, rows)
    delta, moved = aggregator.finish(RoundTotals(np.zeros(4, np.int32), 0.1))
    assert moved.tolist() == [True, True, False, False]
    assert delta.tolist() == [2.5, 4, 0, 0]
    assert aggregator.unprotected == 1


def test_trimmed_mean_of_too_few_values_keeps_the_coordinate() -> None:
    # floor(0.2 * 4) = 0: nothing would be trimmed.
    rows = [(1, 1), (2, 2), (3, 3), (4, 4), (N, 50)]
    np.testing.assert_array_equal(combine("trimmed-mean(trim=0.2)", rows), (N, 3))


def test_distances_of_submodels_are_scaled_to_the_whole_model() -> None:
    rows = [np.array(row, np.float32) for row in [(1, 2, N), (3, 4, 6), (2, N, 8), (N, N, N)]]
    squared = square_distances(rows)
    inf = np.inf
    expected = [[inf, 12, 3, inf], [12, inf, 7.5, inf], [3, 7.5, inf, inf], [inf, inf, inf, inf]]
    np.testing.assert_array_equal(squared, expected)


def test_too_few_clients_for_krum_take_the_median_and_are_counted() -> None:
    aggregator = bound("krum(attackers=2)")
    add_rows(aggregator, X[:6])
    delta, _ = aggregator.finish(RoundTotals(np.zeros(2, np.int32), 0.1))
    np.testing.assert_allclose(delta, np.median(X[:6], axis=0), rtol=1e-6)
    assert aggregator.unprotected == 2


def test_krum_runs_inside_each_fixed_fragment() -> None:
    first = [(*row, N, N) for row in X]
    second = [(N, N, *row) for row in reversed(X)]
    fragments: list[int | None] = [*[0] * 7, *[1] * 7]
    result = combine("multi-krum", first + second, fragments=fragments)
    np.testing.assert_allclose(result, (1.03333333, 1.0, 1.03333333, 1.0), rtol=2e-6)


# Fragment 0 has the coordinates 0, 1 and 4, and fragment 1 has the coordinates 2, 3 and 4.
FRAGMENTS = [[0, 1, 4], [2, 3, 4]]


def average_selected(values: np.ndarray, attackers: int, selected: int) -> np.ndarray:
    """Return the mean of the `selected` rows [n, k] with the smallest scores of Krum."""
    n = len(values)
    scores = []
    for i in range(n):
        distances = sorted(float(((values[i] - values[j]) ** 2).sum()) for j in range(n) if j != i)
        scores.append(sum(distances[: n - attackers - 2]))
    best = sorted(range(n), key=lambda i: (scores[i], i))[:selected]
    return np.asarray(values[best].mean(axis=0))


def draw_updates(second: range) -> list[tuple[int, int, tuple[float, ...]]]:
    """Return (client, fragment, row) of updates. All eight clients train fragment 0, and `second` also fragment 1.

    Client 0 trains fragment 0 twice. Clients 5 and 6 attack.
    """
    rng = np.random.default_rng(2)
    updates = []
    pairs = [(client, 0) for client in range(8)] + [(client, 1) for client in second] + [(0, 0)]
    for client, fragment in pairs:
        row = np.full(5, N)
        row[FRAGMENTS[fragment]] = rng.normal(size=3) + 50.0 * (client in (5, 6))
        updates.append((client, fragment, tuple(row.tolist())))
    return updates


def merged(updates: list[tuple[int, int, tuple[float, ...]]], fragment: int) -> np.ndarray:
    """Return the mean update of each client that trained the fragment, on the coordinates of the fragment."""
    clients = sorted({client for client, trained, _ in updates if trained == fragment})
    rows = []
    for client in clients:
        own = [row for sender, trained, row in updates if (sender, trained) == (client, fragment)]
        rows.append(np.mean(own, axis=0)[FRAGMENTS[fragment]])
    return np.array(rows)


def add_updates(aggregator: RobustAggregator, updates: list[tuple[int, int, tuple[float, ...]]]) -> None:
    clients, fragments, rows = map(list, zip(*updates, strict=True))
    add_rows(aggregator, rows, clients=clients, fragments=fragments)


@pytest.mark.parametrize(("text", "selected"), [("krum(attackers=2)", 1), ("multi-krum(attackers=2)", 6)])
@pytest.mark.parametrize("second", [range(5, 8), range(8)], ids=["few", "all"])
def test_krum_of_clients_that_sent_two_fragments_runs_on_each_fragment(text: str, selected: int, second: range) -> None:
    updates = draw_updates(second)
    aggregator = bound(text, 5)
    add_updates(aggregator, updates)
    assert aggregator.voters == 8
    delta, _ = aggregator.take_result()
    first = average_selected(merged(updates, 0), 2, selected)
    other, unprotected = average_selected(merged(updates, 1), 2, selected), 0
    if len(second) == 3:
        # Three clients are too few for Krum with two attackers.
        other, unprotected = np.median(merged(updates, 1), axis=0), 3
    expected = [first[0], first[1], other[0], other[1], (first[2] + other[2]) / 2]
    np.testing.assert_allclose(delta, expected, rtol=1e-5)
    assert aggregator.unprotected == unprotected


def test_bulyan_of_clients_that_sent_two_fragments_runs_on_each_fragment() -> None:
    updates = draw_updates(range(8))
    aggregator = bound("bulyan", 5)
    add_updates(aggregator, updates)
    delta, _ = aggregator.take_result()
    first, other = (combine("bulyan", [tuple(row) for row in merged(updates, j).tolist()]) for j in (0, 1))
    expected = [first[0], first[1], other[0], other[1], (first[2] + other[2]) / 2]
    np.testing.assert_allclose(delta, expected, rtol=1e-5)


@pytest.mark.parametrize(
    "text", ["median", "trimmed-mean", "norm-bound", "geometric-median", "centred-clipping", "median(min_coverage=1)"]
)
def test_other_rules_have_one_row_for_all_fragments_of_a_client(text: str) -> None:
    updates = draw_updates(range(2, 8))
    aggregator = bound(text, 5)
    add_updates(aggregator, updates)
    delta, _ = aggregator.take_result()
    rows = np.full((8, 5), N)
    for client in range(8):
        values = np.array([row for sender, _, row in updates if sender == client])
        counts = (~np.isnan(values)).sum(axis=0)
        np.divide(np.nansum(values, axis=0), counts, out=rows[client], where=counts > 0)
    expected = combine(text, [tuple(row) for row in rows.tolist()])
    np.testing.assert_allclose(delta, expected, rtol=1e-5)
    if text == "median":
        np.testing.assert_allclose(delta, np.nanmedian(rows, axis=0), rtol=1e-5)


def test_saved_rows_of_two_fragments_continue_with_the_same_bits() -> None:
    updates = draw_updates(range(8))
    aggregator, again = bound("krum(attackers=2)", 5), bound("krum(attackers=2)", 5)
    add_updates(aggregator, updates[:-2])
    again.restore(save_state(aggregator))
    for one in (aggregator, again):
        add_updates(one, updates[-2:])
    assert again.voters == 8
    assert again.take_result()[0].tobytes() == aggregator.take_result()[0].tobytes()


def test_a_coordinate_of_two_fragments_with_too_few_clients_is_counted_once() -> None:
    aggregator = bound("krum", 3)
    rows = [(1.0, N, 5.0), (2.0, N, 6.0), (3.0, N, 7.0), (N, 1.0, 1.0), (N, 2.0, 2.0), (N, 3.0, 3.0)]
    add_rows(aggregator, rows, fragments=[0, 0, 0, 1, 1, 1])
    delta, _ = aggregator.finish(RoundTotals(np.zeros(3, np.int32), 0.1))
    assert delta.tolist() == [2.0, 2.0, 4.0]
    assert aggregator.unprotected == 3


def test_clipping_of_submodels_scales_the_bound_by_the_root_of_their_share() -> None:
    rows = [(3.0, 4.0, N, N), (N, N, N, 10.0), (1.0, 1.0, 1.0, 1.0)]
    radii = 2.0 * np.sqrt([0.5, 0.25, 1.0])
    factors = radii / np.array([5.0, 10.0, 2.0])
    values = np.array(rows)
    expected = np.nanmean(values * np.minimum(1, factors)[:, None], axis=0)
    np.testing.assert_allclose(combine("norm-bound(max_norm=2.0)", rows), expected, rtol=2e-6)
    np.testing.assert_allclose(combine("centred-clipping(radius=2.0)", rows), expected, rtol=2e-6)


def test_geometric_median_of_submodels_equals_a_second_computation() -> None:
    rng = np.random.default_rng(3)
    values = rng.normal(size=(6, 5)).astype(np.float32)
    values[rng.random((6, 5)) < 0.3] = np.nan
    weights = rng.random(6) + 0.5
    covered = ~np.isnan(values)
    filled = np.nan_to_num(values.astype(np.float64))
    z = (weights[:, None] * filled).sum(0) / (weights[:, None] * covered).sum(0)
    for _ in range(3):
        distance = np.array(
            [np.sqrt(((filled[i] - z)[covered[i]] ** 2).sum() * 5 / covered[i].sum()) for i in range(6)]
        )
        b = weights / np.maximum(1e-6, distance)
        z = (b[:, None] * filled).sum(0) / (b[:, None] * covered).sum(0)
    rows = [tuple(row) for row in values.tolist()]
    np.testing.assert_allclose(combine("geometric-median", rows, weights=weights.tolist()), z, rtol=1e-5)


def test_centred_clipping_keeps_its_centre_for_the_next_round_and_in_a_checkpoint() -> None:
    aggregator = bound("centred-clipping(radius=1.0)")
    again = bound("centred-clipping(radius=1.0)")
    add_rows(aggregator, X)
    first, _ = aggregator.finish(RoundTotals(np.zeros(2, np.int32), 0.1))
    add_rows(aggregator, X[:3])
    again.restore(save_state(aggregator))
    add_rows(aggregator, X[3:], clients=[3, 4, 5, 6])
    add_rows(again, X[3:], clients=[3, 4, 5, 6])
    second, _ = aggregator.finish(RoundTotals(np.zeros(2, np.int32), 0.1))
    resumed, _ = again.finish(RoundTotals(np.zeros(2, np.int32), 0.1))
    difference = np.array(X) - first
    clipped = difference * np.minimum(1, 1 / np.linalg.norm(difference, axis=1))[:, None]
    np.testing.assert_allclose(second, first + clipped.mean(axis=0), rtol=1e-5)
    assert resumed.tobytes() == second.tobytes()


def test_several_updates_of_a_client_are_one_vote() -> None:
    rows = [(1.0, N), (3.0, 4.0), (5.0, 8.0), (2.0, 1.0), (9.0, 9.0)]
    aggregator = bound("median(min_coverage=1)")
    add_rows(aggregator, rows, clients=[0, 0, 0, 1, 2])
    assert aggregator.voters == 3
    delta, _ = aggregator.finish(RoundTotals(np.zeros(2, np.int32), 0.1))
    # The votes are (3, 6), (2, 1) and (9, 9).
    assert delta.tolist() == [3.0, 6.0]


@pytest.mark.parametrize("text", ["median", "trimmed-mean", "krum", "multi-krum", "bulyan", "norm-bound"])
def test_the_order_of_reports_does_not_change_the_result(text: str) -> None:
    rng = np.random.default_rng(0)
    rows = [tuple(row) for row in rng.normal(size=(9, 40)).tolist()]
    order = rng.permutation(9).tolist()
    shuffled = [rows[i] for i in order]
    expected = combine(text, rows)
    np.testing.assert_array_equal(combine(text, shuffled, clients=order), expected)


def test_multi_krum_equals_a_search_over_all_pairs() -> None:
    rng = np.random.default_rng(1)
    values = rng.normal(size=(11, 30))
    f = 3
    distance = np.full((11, 11), np.inf)
    for i, j in combinations(range(11), 2):
        distance[i, j] = distance[j, i] = sum((a - b) ** 2 for a, b in zip(values[i], values[j], strict=True))
    scores = [sum(sorted(distance[i])[: 11 - f - 2]) for i in range(11)]
    best = sorted(range(11), key=lambda i: (scores[i], i))[: 11 - f]
    result = combine(f"multi-krum(attackers={f})", [tuple(row) for row in values.tolist()])
    np.testing.assert_allclose(result, values[best].mean(axis=0), rtol=1e-4)


def test_more_selected_clients_than_honest_ones_take_the_median() -> None:
    """A client that fails must not end a run that selects as many clients as there are honest ones."""
    np.testing.assert_allclose(combine("multi-krum(selected=7)", X), np.median(X, axis=0), rtol=2e-6)
    assert bound("multi-krum(attackers=2, selected=6)").min_clients == 8
