"""Passes in pieces give the bits that one pass over everything gives, however many threads take part."""

import numpy as np
import pytest

from fedraa.server import passes
from fedraa.server.aggregation.last_trained import LastTrained
from fedraa.server.async_rules import blend
from fedraa.server.passes import PIECE, SUMMED, accumulate, at, difference, squares, total
from fedraa.server.validation import largest_of
from fedraa.submodels.assignment import Assignment, Submodel

SIZES = (1, SUMMED - 1, SUMMED, SUMMED + 1, PIECE, 3 * PIECE + 5)


@pytest.fixture(autouse=True, params=[1, 3])
def threads(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(passes, "ALONE", 1)
    monkeypatch.setattr(passes, "_cores", lambda: request.param)


def drawn(size: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal(size, np.float32)


@pytest.mark.parametrize("size", SIZES)
def test_differences_and_their_squares(size: int) -> None:
    new, sent = drawn(size), drawn(size, 1)
    out = np.empty(size, np.float32)
    square = total(difference(new, sent, out))
    np.testing.assert_array_equal(out, new - sent)
    assert square == squares(out) == float(np.einsum("i,i->", out, out, dtype=np.float64))


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("step", [1, 3])
def test_sums_on_coordinates(size: int, step: int) -> None:
    where = np.arange(2, 2 + step * size, step)
    target, new, sent = drawn(2 + step * size), drawn(size, 1), drawn(size, 2)
    expected, mixed = target.copy(), target.copy()
    expected[where] += np.float32(0.3) * (new - sent)
    mixed[where] = np.float32(0.7) * mixed[where] + np.float32(0.3) * new
    blended = target.copy()
    blend(blended, where, new, 0.3)
    accumulate(target, where, 0.3, new, sent)
    np.testing.assert_array_equal(target, expected)
    np.testing.assert_array_equal(blended, mixed)


def test_neighbours_are_a_slice_and_others_are_not() -> None:
    assert at(np.arange(3, 9), slice(2, 4)) == slice(5, 7)
    assert at(slice(None), slice(2, 4)) == slice(2, 4)
    assert at(slice(10, 20), slice(2, 4)) == slice(12, 14)
    for other in ([0, 2, 1, 3], [0, 2, 4, 6]):
        np.testing.assert_array_equal(at(np.array(other), slice(0, 4)), other)


@pytest.mark.parametrize("wrong", [np.nan, np.inf, -np.inf])
def test_the_largest_value_is_found_anywhere(wrong: float) -> None:
    values = drawn(3 * PIECE + 5)
    assert largest_of(values) == np.abs(values).max()
    for place in (0, PIECE, len(values) - 1):
        bad = values.copy()
        bad[place] = wrong
        assert not np.isfinite(largest_of(bad))


@pytest.mark.parametrize("index", [None, np.arange(0, 9000, 2)])
def test_a_mask_with_long_runs_is_packed_in_pieces(index: np.ndarray | None) -> None:
    mask = np.ones(4500, bool)
    mask[4000:4200] = mask[4300:] = False
    assignment = Assignment(0, Submodel((1,), index), mask)
    buffer, target = drawn(4500), np.zeros(9000, np.float32)
    expected, found = target.copy(), target
    expected[assignment.where] = assignment.trained(buffer)
    values = assignment.packed(buffer.copy())
    pieces = assignment.pieces(values)
    for where, place in pieces:
        found[where] = values[place]
    assert len(pieces) == 2
    np.testing.assert_array_equal(found, expected)


def test_the_last_training_of_each_coordinate() -> None:
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
            np.testing.assert_array_equal(one.state(), state)
