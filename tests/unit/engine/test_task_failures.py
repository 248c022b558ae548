"""A failed task is sent again until its client or the workers are identified as the cause."""

import pytest

from fedraa.engine.task_failures import MAX_CLIENT_FAULTS, MAX_TASK_ATTEMPTS, FailureAction, TaskFailures
from fedraa.messages import Fault

OF_WORKER = Fault(7, 0, "the worker died")
OF_CLIENT = Fault(7, 0, "ValueError: bad sample", of_client=True)


@pytest.mark.parametrize(
    ("faults", "last"),
    [
        ([OF_WORKER] * (MAX_TASK_ATTEMPTS - 1), FailureAction.RETRY),
        ([OF_WORKER] * MAX_TASK_ATTEMPTS, FailureAction.GIVE_UP),
        ([OF_CLIENT] * (MAX_CLIENT_FAULTS - 1), FailureAction.RETRY),
        ([OF_CLIENT] * MAX_CLIENT_FAULTS, FailureAction.DROP),
        ([OF_CLIENT, OF_WORKER, OF_CLIENT], FailureAction.DROP),
        ([OF_CLIENT, OF_WORKER, OF_WORKER, OF_WORKER], FailureAction.GIVE_UP),
        # Both limits are reached at once: the client is the cause, and the run continues.
        ([OF_WORKER, OF_WORKER, OF_CLIENT, OF_CLIENT], FailureAction.DROP),
    ],
)
def test_add_returns_the_action_after_the_last_fault(faults: list[Fault], last: FailureAction) -> None:
    failures = TaskFailures()
    actions = [failures.add(7, fault) for fault in faults]
    assert actions == [FailureAction.RETRY] * (len(faults) - 1) + [last]


@pytest.mark.parametrize("before", [1, MAX_CLIENT_FAULTS])
def test_resumed_run_drops_the_task_at_the_next_fault_of_its_client(before: int) -> None:
    failures = TaskFailures()
    for _ in range(before):
        failures.add(7, OF_CLIENT)
    failures.add(8, OF_WORKER)
    resumed = TaskFailures()
    resumed.restore(failures.state())
    assert resumed.add(7, OF_CLIENT) is FailureAction.DROP
    actions = [resumed.add(8, OF_WORKER) for _ in range(MAX_TASK_ATTEMPTS)]
    assert actions == [FailureAction.RETRY] * (MAX_TASK_ATTEMPTS - 1) + [FailureAction.GIVE_UP]


def test_forget_resets_only_this_task() -> None:
    failures = TaskFailures()
    failures.add(7, OF_CLIENT)
    failures.add(8, OF_CLIENT)
    failures.forget_task(7)
    failures.forget_task(9)
    assert failures.add(7, OF_CLIENT) is FailureAction.RETRY
    assert failures.add(8, OF_CLIENT) is FailureAction.DROP
