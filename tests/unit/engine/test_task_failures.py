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


def test_forget_resets_only_this_task() -> None:
    failures = TaskFailures()
    failures.add(7, OF_CLIENT)
    failures.add(8, OF_CLIENT)
    failures.forget_task(7)
    failures.forget_task(9)
    assert failures.add(7, OF_CLIENT) is FailureAction.RETRY
    assert failures.add(8, OF_CLIENT) is FailureAction.DROP
