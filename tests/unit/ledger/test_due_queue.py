"""Tasks come out by due time, then by number."""

from fedraa.ledger.due_queue import DueQueue


def test_tasks_with_equal_due_times_come_by_number() -> None:
    queue = DueQueue()
    assert not queue
    for due, task in ((2.0, 0), (1.0, 5), (1.0, 3), (0.5, 9)):
        queue.push(due, task)
    assert (queue.next_due, queue.next_task) == (0.5, 9)
    assert [queue.pop() for _ in range(4)] == [(0.5, 9), (1.0, 3), (1.0, 5), (2.0, 0)]
