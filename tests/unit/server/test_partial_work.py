"""The local steps that a client can finish before a deadline, by its modelled and by its measured time."""

from types import SimpleNamespace
from typing import Any

import pytest

from fedraa.components.state import save_state
from fedraa.devices.availability import Timing
from fedraa.devices.modelled_cost import ModelledCost
from fedraa.server.partial_work import Deadline, RealPaces, cut_task


def modelled(widths: Any, client: int, down: int, up: int, now: float, steps: int | None, work: float) -> ModelledCost:
    duration = float(steps or 10)
    return ModelledCost(duration, None, (0.0, duration))


# A task of 10 steps of 3 FLOPs each. A step has the modelled duration 1.
COSTS: Any = SimpleNamespace(
    cost=modelled,
    count_steps=lambda widths, client: 10,
    flops=lambda widths, client, steps: 3.0 * (10 if steps is None else steps),
)
DECISION: Any = SimpleNamespace(client=0, turn=0)


def steps_before(duration: float, paces: RealPaces | None = None, started: float = 0.0) -> int | None:
    end = Deadline(duration, True, Timing(0, 0.0), paces).end_of(started)
    return cut_task(end, COSTS, (), DECISION, started, (0, 0))


@pytest.mark.parametrize(("deadline", "steps"), [(10.0, None), (9.99, 9), (4.0, 4), (1.0, 1), (0.5, None)])
def test_modelled_time_limits_the_steps_on_the_virtual_clock(deadline: float, steps: int | None) -> None:
    assert steps_before(deadline) == steps
    assert steps_before(deadline, started=7.0) == steps


def test_measured_time_shortens_a_task() -> None:
    paces = RealPaces()
    assert steps_before(20.0, paces) is None
    # 10 steps took 40, so that a step with the margin 1.25 takes 5.
    paces.record_update(0, 30.0, 40.0)
    assert steps_before(20.0, paces) == 4
    assert steps_before(49.9, paces) == 9
    assert steps_before(50.0, paces) is None
    # The modelled time still counts.
    assert steps_before(3.0, paces) == 1


def test_client_that_seems_too_slow_for_one_step_tries_one() -> None:
    paces = RealPaces()
    paces.record_update(0, 3.0, 1000.0)
    assert steps_before(20.0, paces) == 1


def test_lost_task_counts_twice_and_never_speeds_a_client_up() -> None:
    paces = RealPaces()
    paces.record_lost(0, 30.0, 10.0)
    assert steps_before(10.0, paces) == 4
    paces.record_lost(0, 12.0, 10.0)
    assert steps_before(10.0, paces) == 1
    paces.record_lost(0, 12.0, 0.1)
    assert steps_before(10.0, paces) == 1
    paces.record_update(0, 3.0, 1.0)
    assert steps_before(10.0, paces) == 8


def test_checkpoint_keeps_the_measured_paces() -> None:
    paces = RealPaces()
    paces.record_update(0, 30.0, 40.0)
    again = RealPaces()
    again.restore(save_state(paces))
    assert steps_before(20.0, again) == steps_before(20.0, paces) == 4
