"""The number of waiting tasks that are sent to a worker in one call."""

import numpy as np
import pytest

from fedraa.engine.task_queues import Queues
from fedraa.messages import Task


def task(number: int, client: int = 0) -> Task:
    return Task(number, client, 0, 0, 0, 0, (), np.zeros(4, np.float32), 0.1, 1.0)


def filled(dues: list[float], pace: float | None = None) -> Queues:
    """Return queues with the tasks 0, 1, ..., each of one unit of work."""
    queues = Queues(1, None, lambda task: 1.0)
    for number, due in enumerate(dues):
        queues.submit(task(number), due)
    if pace is not None:
        queues.record_duration(pace, 1.0)
    return queues


def taken(queues: Queues, places: int = 1) -> list[int]:
    return [task.id for task in queues.take(0, places)]


def test_earliest_due_task_is_sent_first_and_alone_until_the_pace_is_known() -> None:
    queues = filled([3.0, 1.0, 2.0])
    assert [taken(queues) for _ in range(3)] == [[1], [2], [0]]
    assert not queues.has_waiting(0)


def test_call_has_a_fair_share_of_tasks_for_at_most_a_tenth_of_a_second() -> None:
    assert taken(filled([0.0] * 12, pace=0.001), places=4) == [0, 1, 2]
    assert taken(filled([0.0] * 12, pace=0.024), places=2) == [0, 1, 2, 3]
    assert taken(filled([0.0] * 12, pace=1.0), places=2) == [0]


def test_suspected_task_is_sent_alone_until_it_ends_well() -> None:
    queues = filled([0.0, 1.0, 2.0, 3.0], pace=0.001)
    first = queues.take(0, 1)
    assert len(first) == 4
    queues.again(first[1:3], alone=True)
    queues.ended(first[0], well=True)
    queues.ended(first[3], well=False)
    queues.submit(first[3], 3.0)
    assert [taken(queues) for _ in range(3)] == [[1], [2], [3]]
    for done in first[1:]:
        queues.ended(done, well=True)
        queues.submit(done, 0.0)
    assert taken(queues) == [1, 2, 3]


def test_task_that_was_cancelled_at_a_worker_is_not_sent_again() -> None:
    queues = filled([0.0, 1.0, 2.0], pace=0.001)
    first, second, third = queues.take(0, 1)
    queues.cancel(first.id)
    queues.cancel(second.id)
    queues.again([first, third])
    queues.again([second], alone=True)
    assert taken(queues) == [2]
    assert not queues.has_waiting(0)


def test_call_has_as_many_tasks_as_a_vmap_stack() -> None:
    queues = Queues(1, None, lambda task: 1.0, stack=3)
    for number in range(7):
        queues.submit(task(number), 0.0)
    # The call takes all three tasks although the speed is unknown and a fair share is one task.
    assert taken(queues, places=4) == [0, 1, 2]
    queues.record_duration(1.0, 1.0)
    assert [taken(queues, places=4) for _ in range(2)] == [[3, 4, 5], [6]]
    queues.again([queues._tasks[number][0] for number in (0, 1)], alone=True)
    assert [taken(queues) for _ in range(2)] == [[0], [1]]


def test_call_has_tasks_for_different_rows_of_a_stack() -> None:
    """In stacks of 3, the tasks 0, 3 and 6 need the same row."""
    queues = Queues(1, None, lambda task: 1.0, stack=3)
    for due, number in enumerate((0, 3, 6, 1, 2, 4)):
        queues.submit(task(number), float(due))
    assert [taken(queues, places=4) for _ in range(3)] == [[0, 1, 2], [3, 4], [6]]


def test_each_worker_group_has_a_separate_queue() -> None:
    queues = Queues(2, np.array([1, 0]), lambda task: 1.0)
    queues.submit(task(0, client=0), 0.0)
    queues.submit(task(1, client=1), 0.0)
    assert [[task.id for task in queues.take(group, 1)] for group in (0, 1)] == [[1], [0]]
    with pytest.raises(IndexError):
        queues.submit(task(2, client=2), 0.0)
