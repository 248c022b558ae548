"""The bound on updates: no bound, a number, and `auto`, which remembers the norms of accepted updates."""

import io
from dataclasses import replace

import numpy as np
import pytest
from test_validation import GOOD, SIZE, TASK

from fedraa.messages import Task, Update
from fedraa.rundir.checkpoint import read_state, write_state
from fedraa.server.update_checks import NORM_FACTOR, WARM_UP_UPDATES, Bounds


def away(distance: float, task: Task = TASK) -> Update:
    """Return an update at this distance from the sent weights, in one coordinate."""
    params = task.params.copy()
    params[3] += np.float32(distance)
    return replace(GOOD, fragment=task.fragment, params=params)


def of_fragment(number: int) -> Task:
    return replace(TASK, fragment=number)


@pytest.mark.parametrize("value", [1e30, -1e30, 1001.0])
def test_implausibly_large_values_are_refused_without_a_bound(value: float) -> None:
    wrong = Bounds().judge_update(away(value), TASK)
    assert wrong == f"params hold values up to {abs(value):.4g}, the received weights only up to 0"
    assert Bounds().judge_update(away(1000), TASK) is None


def test_large_values_are_accepted_if_the_sent_weights_are_large() -> None:
    large = replace(TASK, buffer=np.full(SIZE, 1e6, np.float32))
    assert Bounds().judge_update(away(1e8, large), large) is None


@pytest.mark.parametrize("name", ["gradient", "squares"])
def test_shape_and_values_of_extras_are_checked(name: str) -> None:
    def with_buffer(*values: float) -> Update:
        return replace(GOOD, extras={name: np.array(values, np.float32)})

    assert Bounds().judge_update(with_buffer(*[1e30] * SIZE), TASK) == f"{name} hold values up to 1e+30"
    assert Bounds().judge_update(with_buffer(1.0), TASK) == f"{name} have the shape (1,), not (12,)"
    assert Bounds().judge_update(with_buffer(*[5.0] * SIZE), TASK) is None


def test_update_with_zero_steps_is_refused() -> None:
    assert Bounds().judge_update(replace(GOOD, steps=0), TASK) == "the steps are 0"


def test_numeric_bound_limits_the_norm_of_every_update() -> None:
    bounds = Bounds(2.0)
    assert bounds.judge_update(away(1.9), TASK) is None
    assert bounds.judge_update(away(2.1), TASK) == "the update's norm 2.1 is over the bound 2"


def test_auto_bounds_the_first_update_by_the_norm_of_the_sent_weights() -> None:
    """The sent weights have the norm 0, so the bound uses 1. With norm 3 the bound is three times as large."""
    assert "over 20 times the norm of the received weights, 1" in str(Bounds("auto").judge_update(away(20.5), TASK))
    assert Bounds("auto").judge_update(away(19.5), TASK) is None
    longer = replace(TASK, buffer=np.array([3] + [0] * (SIZE - 1), np.float32))
    assert Bounds("auto").judge_update(away(59.5, longer), longer) is None
    assert Bounds("auto").judge_update(away(60.5, longer), longer) is not None


def test_auto_bounds_later_updates_by_the_median_norm_of_their_fragment() -> None:
    """The median of (1, 2, 3, 4, 15) is 3. After 50 updates of norm 1 it is 1."""
    bounds = Bounds("auto")
    for norm in (1, 15, 2, 4, 3):
        assert bounds.judge_update(away(norm), TASK) is None
    assert bounds.judge_update(away(3 * NORM_FACTOR + 1), TASK) == (
        "the update's norm 61 is over 20 times the median norm of its fragment's updates, 3"
    )
    other = of_fragment(5)
    # A fragment without accepted updates.
    assert bounds.judge_update(away(19.5, other), other) is None
    for _ in range(50):
        assert bounds.judge_update(away(1), TASK) is None
    assert bounds.judge_update(away(NORM_FACTOR + 1), TASK) is not None
    assert bounds.judge_update(away(NORM_FACTOR - 1), TASK) is None


def test_sampled_submodels_of_one_size_share_a_median_norm() -> None:
    """Their fragments are labels, which differ in each round."""
    bounds = Bounds("auto")
    for label in range(WARM_UP_UPDATES):
        task = replace(TASK, fragment=label, by_size=True)
        assert bounds.judge_update(away(0.1, task), task) is None
    task = replace(TASK, fragment=99, by_size=True)
    assert bounds.judge_update(away(0.1 * NORM_FACTOR + 1, task), task) is not None
    assert [size for size, _ in bounds.state()["seen"]] == [SIZE]
    # The median norm of these submodels is no bound for a fragment.
    assert bounds.judge_update(away(0.1 * NORM_FACTOR + 1), TASK) is None


def test_refused_updates_do_not_change_the_median_norm() -> None:
    bounds = Bounds("auto")
    for _ in range(WARM_UP_UPDATES):
        bounds.judge_update(away(1), TASK)
    for _ in range(200):
        assert bounds.judge_update(away(100), TASK) is not None
    assert bounds.judge_update(away(2), TASK) is None


def test_normal_updates_pass_after_updates_of_norm_zero() -> None:
    bounds = Bounds("auto")
    for _ in range(WARM_UP_UPDATES):
        assert bounds.judge_update(away(0), TASK) is None
    assert bounds.judge_update(away(1), TASK) is None


def test_checkpoint_keeps_the_norms_of_accepted_updates() -> None:
    bounds, again, stream = Bounds("auto"), Bounds("auto"), io.BytesIO()
    for norm in (1, 2, 3, 4, 5):
        bounds.judge_update(away(norm), TASK)
    write_state(stream, {"bounds": bounds.state()})
    again.restore(read_state(stream.getvalue())["bounds"])
    assert again.judge_update(away(59), TASK) is None
    assert again.state()["seen"] == [[1, [*bounds.state()["seen"][0][1], 59.0]]]
