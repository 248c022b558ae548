"""Kept values of clients: only trained coordinates change, and values never written come from the task or the start."""

from typing import Any

import numpy as np
import pytest
from refusals import refuses

from fedraa.client.kept_buffer import KeptBuffer
from fedraa.components.state import save_state
from fedraa.messages import Task, Update, Vector, values_of
from fedraa.server.client_states import ClientStates
from fedraa.submodels.assignment import Assignment, Submodel

PARAMS = np.arange(10, 16, dtype=np.float32)
WHOLE = Assignment(0, Submodel((6,), None))
# Coordinates 1, 2 and 5, of which the middle one is masked.
PART = Assignment(1, Submodel((3,), np.array([1, 2, 5])), np.array([True, False, True]))


def states(*buffers: KeptBuffer) -> ClientStates:
    return ClientStates(buffers, PARAMS, clients=3)


def carried(kept: ClientStates, client: int, assignment: Assignment) -> Vector:
    [extra] = kept.send(client, assignment).values()
    return values_of(extra)


def trained(client: int, **extras: list[float]) -> Update:
    values = {f"kept_{name}": np.array(row, np.float32) for name, row in extras.items()}
    return Update(0, client, 0, 0, PARAMS, 1, 0.0, 0.0, values)


@pytest.mark.parametrize(
    ("start", "whole", "part"),
    [
        (0.5, [0.5] * 6, [0.5, 0, 0.5]),
        ("model", PARAMS, [11, 0, 15]),
        ("received", [np.nan] * 6, [np.nan] * 3),
    ],
)
def test_values_never_written_are_the_start_values(start: float, whole: list[float], part: list[float]) -> None:
    kept = states(KeptBuffer("v", start))
    np.testing.assert_array_equal(carried(kept, 0, WHOLE), whole)
    np.testing.assert_array_equal(carried(kept, 0, PART), part)
    assert kept.copy_rows([0, 1, 2])["clients"].size == 0


def test_only_trained_coordinates_of_the_client_change() -> None:
    kept = states(KeptBuffer("v", "model"))
    kept.receive(PART, trained(1, v=[1, 2, 3]))
    np.testing.assert_array_equal(carried(kept, 1, WHOLE), [10, 1, 12, 13, 14, 3])
    np.testing.assert_array_equal(carried(kept, 0, WHOLE), PARAMS)
    rows = kept.copy_rows([0, 1])
    np.testing.assert_array_equal(rows["clients"], [1])
    np.testing.assert_array_equal(rows["kept_v"], [[np.nan, 1, np.nan, np.nan, np.nan, 3]])


def test_buffer_of_some_coordinates_is_sent_and_written_only_there() -> None:
    kept = states(KeptBuffer("head", "model", coordinates=np.array([2, 4, 5])))
    np.testing.assert_array_equal(carried(kept, 0, WHOLE), [12, 14, 15])
    kept.receive(WHOLE, trained(0, head=[1, 2, 3]))
    # The part holds the coordinates 2 and 5, and does not train the first of them.
    np.testing.assert_array_equal(carried(kept, 0, PART), [0, 3])
    kept.receive(PART, trained(0, head=[7, 8]))
    np.testing.assert_array_equal(carried(kept, 0, WHOLE), [1, 2, 8])


def test_buffer_of_a_size_is_the_same_for_every_submodel() -> None:
    kept = states(KeptBuffer("alpha", 0.25, size=2))
    kept.receive(PART, trained(2, alpha=[0.5, 0.75]))
    np.testing.assert_array_equal(carried(kept, 2, WHOLE), [0.5, 0.75])
    np.testing.assert_array_equal(carried(kept, 0, PART), [0.25, 0.25])


def test_restored_states_continue_with_the_same_values() -> None:
    kept = states(KeptBuffer("v", "model"), KeptBuffer("alpha", 0.25, size=1))
    kept.receive(PART, trained(1, v=[1, 2, 3], alpha=[0.5]))
    other = states(KeptBuffer("v", "model"), KeptBuffer("alpha", 0.25, size=1))
    other.restore(save_state(kept))
    for client in range(3):
        for name, extra in kept.send(client, WHOLE).items():
            np.testing.assert_array_equal(values_of(extra), values_of(other.send(client, WHOLE)[name]))
    assert other.copy_rows([0, 2])["clients"].size == 0


def test_buffer_counts_the_values_of_its_row() -> None:
    buffers = (KeptBuffer("v"), KeptBuffer("head", coordinates=np.array([2, 4])), KeptBuffer("alpha", size=1))
    assert [buffer.count(6) for buffer in buffers] == [6, 2, 1]


def test_task_carries_the_names_that_its_update_must_hold() -> None:
    kept = states(KeptBuffer("v"))
    task = Task(0, 0, 0, 0, 0, 0, (6,), PARAMS, 0.1, 0.0, extras=kept.send(0, WHOLE), asks=kept.names)
    assert task.asks == ("kept_v",)
    assert set(task.extras) == {"kept_v"}


@pytest.mark.parametrize(
    ("start", "size"), [("zeros", None), ("received", 2), ("model", 2), (np.zeros(3), 2), (np.zeros(6), None)]
)
def test_start_that_does_not_fit_is_refused(start: Any, size: int | None) -> None:
    with refuses("kept: own.start"):
        KeptBuffer("own", start, size)


def test_two_buffers_of_one_name_are_refused() -> None:
    with refuses("kept", "own"):
        states(KeptBuffer("own"), KeptBuffer("own", "model"))
