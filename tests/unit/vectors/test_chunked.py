"""Passes in chunks give the bits of one pass over the whole buffer, for any number of threads."""

from itertools import pairwise

import numpy as np
import pytest

from fedraa.aggregation.aggregator import ClientDelta, RoundTotals
from fedraa.aggregation.registry import CoverageMean
from fedraa.messages import Index
from fedraa.methods.asyncfeded import AsyncFedED
from fedraa.server.async_rule import AsyncModel, ClientUpdate
from fedraa.server.mixing import blend_weights
from fedraa.vectors import chunked
from fedraa.vectors.chunked import CHUNK_SIZE, SUM_BLOCK, add_scaled, ordered_sum, sum_squares_in_float32
from fedraa.vectors.coverage_counter import CoverageCounter
from fedraa.vectors.delta_view import DeltaView
from fedraa.vectors.finite import find_largest
from fedraa.vectors.index_ranges import CoordinateSet, IndexRanges, as_ranges, global_slices, index_of
from fedraa.vectors.last_trained import LastTrained
from fedraa.vectors.reusable_buffer import ReusableBuffer
from fedraa.vectors.run_length import RunLengthArray, summarise_coverage

SIZES = (1, SUM_BLOCK - 1, SUM_BLOCK, SUM_BLOCK + 1, CHUNK_SIZE, 3 * CHUNK_SIZE + 5)


@pytest.fixture(autouse=True, params=[1, 3])
def threads(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(chunked, "MIN_PARALLEL_SIZE", 1)
    monkeypatch.setattr(chunked, "count_cores", lambda: request.param)


def drawn(size: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal(size, np.float32)


def places(size: int, where: str) -> CoordinateSet:
    """Return coordinates of a buffer of this size in a longer model."""
    match where:
        case "whole":
            return slice(None)
        case "every third":
            return as_ranges(np.arange(2, 2 + 3 * size, 3))
        # The runs are half of every 2000 coordinates.
        case _:
            index = np.arange(2 * size)
            return as_ranges(index[index % 2000 < 1000][:size])


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("where", ["whole", "every third", "runs"])
@pytest.mark.parametrize("mask", ["none", "a head", "a half"])
def test_delta_view_gives_the_delta_and_its_norm(size: int, where: str, mask: str) -> None:
    new, sent, coordinates = drawn(size), drawn(size, 1), places(size, where)
    trained = {"none": np.ones(size, bool), "a head": np.arange(size) < size - 7, "a half": drawn(size, 2) > 0}[mask]
    expected, result, counted = (np.zeros(4 * size + 3, np.float32) for _ in range(3))
    index = np.arange(len(result))[:size] if where == "whole" else np.arange(len(result))[index_of(coordinates)]
    delta = (new - sent)[trained]
    change = DeltaView(coordinates, new, sent, None if mask == "none" else trained, norm=True)
    expected[index[trained]] = delta

    def put(place: Index | slice, piece: np.ndarray) -> None:
        result[place] += piece

    change.feed_consumers(put)
    np.testing.assert_array_equal(result, expected)
    if not change.whole:
        for place in change.places():
            counted[place] += 1
        np.testing.assert_array_equal(np.flatnonzero(counted), np.sort(index[trained]))
    assert counted.max() <= 1
    assert change.squared == pytest.approx(np.sum(delta.astype(np.float64) ** 2), rel=1e-5)
    # The additions have the same order as those for an array with only the trained coordinates.
    assert change.squared == ordered_sum(sum_squares_in_float32(delta))
    np.testing.assert_array_equal(change.delta, delta)
    np.testing.assert_array_equal(np.arange(len(result) if where != "whole" else size)[change.where], index[trained])


@pytest.mark.parametrize("amounts", [(1, 1, 1), (3, 7, 500), (0.1, 1, 0.7), (2**24, 1, 1)])
def test_coverage_counter_has_the_bits_of_sums_by_coordinate(amounts: tuple[float, ...]) -> None:
    """Sums on runs, single coordinates and the whole model have the bits of additions to each coordinate."""
    size, nothing = 9000, np.empty(0, np.float32)
    tally, expected, whole = CoverageCounter(size, np.float32), np.zeros(size, np.float32), np.float32(0)
    parts = [np.arange(100, 5000), np.arange(0, 9000, 2), np.arange(4000, 9000)]
    for amount, part in zip(amounts, parts, strict=True):
        tally.add(DeltaView(as_ranges(part), np.empty(len(part), np.float32)), amount)
        expected[part] += np.float32(amount)
        tally.add(DeltaView(slice(None), nothing), amount)
        whole += np.float32(amount)
        tally, before = CoverageCounter(size, np.float32), tally
        tally.restore(before.state())
    np.testing.assert_array_equal(tally.finish(), expected + whole)
    np.testing.assert_array_equal(tally.finish(), np.zeros(size))


@pytest.mark.parametrize("amounts", [(1, 1, 1), (3, 7, 500), (0.1, 1, 0.7)])
def test_coverage_mean_of_runs_equals_mean_of_coordinates(amounts: tuple[float, ...]) -> None:
    """No weight is stored per coordinate. The parts meet, overlap, or omit coordinates."""
    size = 2 * CHUNK_SIZE + 5000
    parts = [np.r_[100:3000, 5000:9000], np.r_[3000:5000, 8000 : CHUNK_SIZE + 700], np.arange(CHUNK_SIZE, size - 9)]
    mean, counts = CoverageMean().bind(size, 3), CoverageCounter(size, np.int32)
    total, weight, count = np.zeros(size, np.float32), np.zeros(size, np.float32), np.zeros(size, np.int32)
    for client, (part, amount) in enumerate(zip(parts, amounts, strict=True)):
        change = DeltaView(as_ranges(part), drawn(len(part), client), mask=drawn(len(part), 7) < 9, gather=True)
        mean.add(ClientDelta(client, change, amount, 0.1))
        counts.add(change)
        change.run_joined()
        total[part] += np.float32(amount) * drawn(len(part), client)
        weight[part] += np.float32(amount)
        count[part] += 1
    delta, moved = mean.finish(totals := RoundTotals(levels := counts.finish(), 0.1))
    assert isinstance(levels, RunLengthArray)
    np.testing.assert_array_equal(delta[moved], (total / np.maximum(weight, np.float32(1e-9)))[count > 0])
    for result, expected in ((moved, count > 0), (totals.covered, count > 0), (totals.coverage, count)):
        np.testing.assert_array_equal(result, expected)
    assert not delta[count == 0].any()
    assert summarise_coverage(levels, 3) == summarise_coverage(count, 3)
    by_runs, by_coordinates = LastTrained(size), LastTrained(size)
    by_runs.now(4, levels)
    by_coordinates.now(4, count)
    np.testing.assert_array_equal(by_runs.state()["rounds"], by_coordinates.state()["rounds"])


def test_delta_view_runs_consumers_at_run_joined_and_later_ones_immediately() -> None:
    new, sent = drawn(3 * CHUNK_SIZE), drawn(3 * CHUNK_SIZE, 1)
    first, second = np.zeros_like(new), np.zeros_like(new)
    change = DeltaView(slice(None), new, sent, gather=True)
    for target in (first, second):
        change.join(lambda place, piece, target=target: target.__setitem__(place, piece))  # type: ignore[misc]
    assert not first.any()
    change.run_joined()
    np.testing.assert_array_equal(first, new - sent)
    np.testing.assert_array_equal(second, first)
    # After `run_joined`, a new consumer runs immediately.
    change.join(lambda place, piece: first.__setitem__(place, 2 * piece))
    np.testing.assert_array_equal(first, 2 * second)


def test_reusable_buffer_without_references_reuses_its_memory() -> None:
    room = ReusableBuffer(100, np.float32)
    first = room.filled(0)
    first += 1
    part, second = first[10:20][::2], room.filled(0)
    del first
    third = room.filled(0)
    assert not np.shares_memory(part, third)
    assert part.all()
    assert not second.any()
    third += 1
    place = third.ctypes.data
    del third
    fourth = room.filled(0)
    assert fourth.ctypes.data == place
    assert not fourth.any()


@pytest.mark.parametrize("size", [*SIZES, 5 * CHUNK_SIZE + 12_345])
@pytest.mark.parametrize("where", ["whole", "every third", "half"])
def test_asyncfeded_weight_is_a_ratio_of_norms(size: int, where: str) -> None:
    place = places(size, where)
    at = np.arange(size) if isinstance(place, slice) else index_of(place)
    new, sent, params = drawn(size), drawn(size, 1), drawn(int(np.max(at)) + 1, 2)
    gone, went = ((x.astype(np.float64) - sent).astype(np.float32) for x in (params[at], new))
    weight = 0.5 / (np.linalg.norm(gone.astype(np.float64)) / np.linalg.norm(went.astype(np.float64)) + 2)
    expected = params.copy()
    expected[at] += np.float32(weight) * (new - sent)
    runs = None if isinstance(place, slice) else place
    arrival = ClientUpdate(0, 0, slice(None) if runs is None else at, new, sent, 0, 1, 0.0, runs=runs)
    taken = AsyncFedED(server_lr=0.5, epsilon=2.0).apply_update(arrival, AsyncModel(params, 1, 1))
    assert taken.weight == pytest.approx(weight, rel=1e-6)
    np.testing.assert_allclose(params, expected, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("step", [1, 3])
def test_add_scaled_and_blend_weights_equal_numpy_on_coordinates(size: int, step: int) -> None:
    where = np.arange(2, 2 + step * size, step)
    target, new, sent = drawn(2 + step * size), drawn(size, 1), drawn(size, 2)
    expected, mixed = target.copy(), target.copy()
    expected[where] += np.float32(0.3) * (new - sent)
    mixed[where] = np.float32(0.7) * mixed[where] + np.float32(0.3) * new
    blended = target.copy()
    blend_weights(blended, as_ranges(where), new, 0.3)
    add_scaled(target, as_ranges(where), 0.3, new, sent)
    np.testing.assert_array_equal(target, expected)
    np.testing.assert_array_equal(blended, mixed)


@pytest.mark.parametrize("seed", range(6))
def test_views_of_equal_runs_equal_single_runs(seed: int) -> None:
    """Views of a vector with rows of equal runs have the values of the single runs, for any chunks."""
    rng, starts, lengths, at = np.random.default_rng(seed), list[int](), list[int](), 0
    # The coordinates belong to several matrices.
    for _ in range(8):
        width, step, rows = rng.integers(600, 700), rng.integers(700, 800), rng.integers(1, 6)
        starts += [at + row * step for row in range(rows)]
        lengths += [width] * rows
        at += rows * step + rng.integers(0, 2)
    index = np.concatenate([np.arange(start, start + n) for start, n in zip(starts, lengths, strict=True)])
    runs, target = as_ranges(index), np.arange(at, dtype=np.float32)
    assert isinstance(runs, IndexRanges)
    ends = np.unique(np.r_[0, rng.integers(0, len(index), 4), np.cumsum(lengths)[::7], len(index)])
    views = 0
    for first, last in pairwise(ends.tolist()):
        seen = np.full(last - first, np.nan, np.float32)
        for view, part in runs.iterate_views(target, slice(first, last)):
            seen[part] = view.reshape(-1)
            view += 1
            views += 1
        np.testing.assert_array_equal(seen, index[first:last])
    assert views < len(starts) + len(ends)
    expected = np.arange(at, dtype=np.float32)
    expected[index] += 1
    np.testing.assert_array_equal(target, expected)


def test_global_slices_makes_slices_only_of_long_runs() -> None:
    assert list(global_slices(as_ranges(np.arange(3, 9)), slice(2, 4))) == [(slice(5, 7), slice(0, 2))]
    assert list(global_slices(slice(None), slice(2, 4))) == [(slice(2, 4), slice(0, 2))]
    assert list(global_slices(slice(10, 20), slice(2, 4))) == [(slice(12, 14), slice(0, 2))]
    two = as_ranges(np.r_[5:1005, 7000:8000])
    assert list(global_slices(two, slice(900, 1100))) == [
        (slice(905, 1005), slice(0, 100)),
        (slice(7000, 7100), slice(100, 200)),
    ]
    for other in ([0, 2, 1, 3], [0, 2, 4, 6]):
        [(place, part)] = global_slices(as_ranges(np.array(other)), slice(0, 4))
        np.testing.assert_array_equal(place, other)
        assert part == slice(0, 4)
    # The result is an array, not a slice.
    assert index_of(as_ranges(np.empty(0, np.int64))).size == 0  # type: ignore[union-attr]


@pytest.mark.parametrize("wrong", [np.nan, np.inf, -np.inf])
def test_find_largest_detects_a_value_that_is_not_finite_at_any_position(wrong: float) -> None:
    values = drawn(3 * CHUNK_SIZE + 5)
    assert find_largest(values) == np.abs(values).max()
    for place in (0, CHUNK_SIZE, len(values) - 1):
        bad = values.copy()
        bad[place] = wrong
        assert not np.isfinite(find_largest(bad))


def test_last_trained_tracks_each_coordinate() -> None:
    last, every = LastTrained(3), np.broadcast_to(np.int32(2), 3)
    assert last.oldest == -1
    for step, coverage, oldest, state in (
        (0, every, 0, 0),
        (1, np.array([1, 0, 2], np.int32), 0, [1, 0, 1]),
        (2, np.array([0, 1, 0], np.int32), 1, [1, 2, 1]),
        (3, np.zeros(3, np.int32), 1, [1, 2, 1]),
        (4, every, 4, 4),
    ):
        last.now(step, coverage)
        other = LastTrained(3)
        other.restore(last.state())
        for one in (last, other):
            assert one.oldest == oldest
            np.testing.assert_array_equal(one.state()["rounds"], state)
