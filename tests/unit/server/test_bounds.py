"""The bound on updates: none, a number, and `auto` with the remembered norms."""

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
def test_what_no_training_comes_to_is_refused_without_a_bound(value: float) -> None:
    wrong = Bounds().judge_update(away(value), TASK)
    assert wrong == f"params hold values up to {abs(value):.4g}, the received weights only up to 0"
    assert Bounds().judge_update(away(1000), TASK) is None


def test_a_model_may_have_large_values_of_its_own() -> None:
    large = replace(TASK, buffer=np.full(SIZE, 1e6, np.float32))
    assert Bounds().judge_update(away(1e8, large), large) is None


@pytest.mark.parametrize("name", ["gradient", "squares"])
def test_what_comes_besides_is_looked_at_too(name: str) -> None:
    def with_buffer(*values: float) -> Update:
        return replace(GOOD, extras={name: np.array(values, np.float32)})

    assert Bounds().judge_update(with_buffer(*[1e30] * SIZE), TASK) == f"{name} hold values up to 1e+30"
    assert Bounds().judge_update(with_buffer(1.0), TASK) == f"{name} have the shape (1,), not (12,)"
    assert Bounds().judge_update(with_buffer(*[5.0] * SIZE), TASK) is None


def test_steps_are_counted_from_one() -> None:
    assert Bounds().judge_update(replace(GOOD, steps=0), TASK) == "the steps are 0"


def test_a_number_bounds_every_update() -> None:
    bounds = Bounds(2.0)
    assert bounds.judge_update(away(1.9), TASK) is None
    assert bounds.judge_update(away(2.1), TASK) == "the update's norm 2.1 is over the bound 2"


def test_the_very_first_update_is_bounded_by_what_was_sent() -> None:
    """||w|| is 0 here, so the bound uses 1. For sent weights of norm 3 the bound is three times as large."""
    assert "over 20 times the norm of the received weights, 1" in str(Bounds("auto").judge_update(away(20.5), TASK))
    assert Bounds("auto").judge_update(away(19.5), TASK) is None
    longer = replace(TASK, buffer=np.array([3] + [0] * (SIZE - 1), np.float32))
    assert Bounds("auto").judge_update(away(59.5, longer), longer) is None
    assert Bounds("auto").judge_update(away(60.5, longer), longer) is not None


def test_then_by_a_multiple_of_the_median_of_its_fragment() -> None:
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


def test_what_is_refused_does_not_move_the_median() -> None:
    bounds = Bounds("auto")
    for _ in range(WARM_UP_UPDATES):
        bounds.judge_update(away(1), TASK)
    for _ in range(200):
        assert bounds.judge_update(away(100), TASK) is not None
    assert bounds.judge_update(away(2), TASK) is None


def test_clients_that_do_not_move_do_not_make_all_others_odd() -> None:
    bounds = Bounds("auto")
    for _ in range(WARM_UP_UPDATES):
        assert bounds.judge_update(away(0), TASK) is None
    assert bounds.judge_update(away(1), TASK) is None


def test_what_is_usual_goes_with_a_checkpoint() -> None:
    bounds, again, stream = Bounds("auto"), Bounds("auto"), io.BytesIO()
    for norm in (1, 2, 3, 4, 5):
        bounds.judge_update(away(norm), TASK)
    write_state(stream, {"bounds": bounds.state()})
    again.restore(read_state(stream.getvalue())["bounds"])
    assert again.judge_update(away(59), TASK) is None
    assert again.state()["seen"] == [[1, [*bounds.state()["seen"][0][1], 59.0]]]
