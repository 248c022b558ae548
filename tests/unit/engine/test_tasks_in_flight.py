"""Tasks finish by due time on the virtual clock; on the wall clock, only after they have arrived."""

from math import inf

import numpy as np

from fedraa.engine.tasks_in_flight import TasksInFlight
from fedraa.messages import Fault, Task


def make_tasks(*dues: float) -> TasksInFlight:
    """Return tasks with the numbers 0, 1, ... and these due times."""
    tasks = TasksInFlight()
    for number, due in enumerate(dues):
        tasks.add(Task(number, 0, 0, 0, 0, 0, (), np.zeros(1, np.float32), lr=0.1, cost=due), due)
    return tasks


def test_next_task_follows_due_times_when_tasks_are_removed_in_order() -> None:
    tasks = make_tasks(3.0, 1.0, 2.0, 1.0)
    order = []
    while tasks:
        order.append((tasks.next_due, tasks.next_task))
        assert tasks.remove(tasks.next_task).id == order[-1][1]
    assert order == [(1.0, 1), (1.0, 3), (2.0, 2), (3.0, 0)]


def test_next_task_skips_tasks_that_were_removed_before() -> None:
    tasks = make_tasks(3.0, 1.0, 2.0)
    tasks.remove(2)
    assert tasks.next_task == 1
    tasks.remove(1)
    assert (tasks.next_due, tasks.next_task) == (3.0, 0)


def test_due_times_are_in_the_order_of_sending() -> None:
    tasks = make_tasks(3.0, 1.0, 2.0)
    tasks.remove(1)
    assert tasks.due_times() == [(0, 3.0), (2, 2.0)]


def test_find_returns_none_for_a_task_that_is_not_in_flight() -> None:
    tasks = make_tasks(3.0, 1.0)
    tasks.remove(0)
    sent = tasks.find(1)
    assert sent is not None
    assert (sent.task.id, sent.due) == (1, 1.0)
    assert tasks.find(0) is None
    assert tasks.find(None) is None


def test_pop_outcome_follows_due_times_of_arrived_tasks() -> None:
    tasks = make_tasks(3.0, 1.0, 2.0)
    assert tasks.next_outcome_due == inf
    for number in (0, 2):
        tasks.add_outcome(number, Fault(number, 0, f"fault {number}"))
    assert [tasks.has_arrived(number) for number in (0, 1, 2, None)] == [True, False, True, False]
    assert tasks.next_outcome_due == 2.0
    task, outcome = tasks.pop_outcome()
    assert (task.id, outcome) == (2, Fault(2, 0, "fault 2"))
    assert not tasks.has_arrived(2)
    assert tasks.next_outcome_due == 3.0
    assert len(tasks) == 2
