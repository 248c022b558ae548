"""The next action after a failed attempt of a task, and checks that end the run after a failure."""

from collections import Counter
from enum import Enum
from typing import ClassVar, NoReturn

import numpy as np

from fedraa.components.state import Stateful
from fedraa.errors import RunFailed, StructuredError
from fedraa.ledger.bad_clients import MAX_FIRST_FAILURES, BadClients
from fedraa.ledger.task_ledger import TaskLedger
from fedraa.messages import Fault, Task, Update
from fedraa.numbers import format_count
from fedraa.server.update_checks import model_defect

# Maximum number of attempts of one task. After the last one, the run fails.
MAX_TASK_ATTEMPTS = 4
# A task is dropped after this number of failures on healthy workers, because its client is the cause.
MAX_CLIENT_FAULTS = 2


class FailureAction(Enum):
    """The next action after a failed attempt of a task."""

    # Send the task again, because the worker may be the cause.
    RETRY = "retry"
    # Drop the task, because its client is the cause.
    DROP = "drop"
    # End the run, because every worker fails.
    GIVE_UP = "give up"


class TaskFailures(Stateful):
    """Counts of the failed attempts of each task in flight.

    A resumed run keeps only the counts of failures that clients may have caused, because it may have other workers.
    """

    state_fields: ClassVar[tuple[str, ...]] = ("_client_faults",)

    def __init__(self) -> None:
        self._attempts: Counter[int] = Counter()
        # The last failure that a client may have caused.
        self._last_fault: Fault | None = None
        # This counts only failures on healthy workers, because the client may have caused them.
        self._client_faults: dict[int, int] = {}

    def add(self, task: int, fault: Fault) -> FailureAction:
        """Count a failed attempt of a task. Return the next action."""
        self._attempts[task] += 1
        if fault.of_client:
            self._last_fault = fault
            self._client_faults[task] = self._client_faults.get(task, 0) + 1
        # On the wall clock, a run may stop after the last failure and before the task is due. The count is then larger.
        if self._client_faults.get(task, 0) >= MAX_CLIENT_FAULTS:
            return FailureAction.DROP
        if self._attempts[task] < MAX_TASK_ATTEMPTS:
            return FailureAction.RETRY
        return FailureAction.GIVE_UP

    def check_any_success(self, ledger: TaskLedger) -> None:
        """Raise an error at the end of a run if every client that received a task has failed.

        Args:
            ledger: The record of tasks and failed clients.

        Raises:
            InputError: The user's component or data made the last task fail.
            RunFailed: The tasks failed for another reason, or before the run was resumed.
        """
        tried = int(np.count_nonzero(ledger.turns))
        if not ledger.bad_clients.all_failed(tried):
            return
        problem = f"the run trained nothing, because every task of {format_count(tried, 'client')} failed"
        fault = self._last_fault
        if fault is None:
            raise RunFailed("clients", problem)
        raise _last_error(fault, "clients", f"{problem}; the last, task {fault.task}", _hint_about(fault))

    def forget_task(self, task: int) -> None:
        """Remove the counts of a task's failed attempts, when the task is no longer in flight."""
        self._attempts.pop(task, None)
        self._client_faults.pop(task, None)


def give_up(task: Task, fault: Fault) -> NoReturn:
    """Raise RunFailed for a task that failed at every attempt."""
    problem = f"task {task.id} failed {MAX_TASK_ATTEMPTS} times, the last time with {fault.error}"
    raise RunFailed(f"client {task.client}", problem)


def check_sent_model(task: Task, outcome: Update | Fault) -> None:
    """Raise RunFailed if the weights that the client received are NaN, infinite or too large.

    Such weights cause the failure. Neither the client nor its worker causes it.
    """
    defect = model_defect(task, outcome if isinstance(outcome, Update) else None)
    if defect is not None:
        raise RunFailed(
            "model",
            f"the weights that client {task.client} received with task {task.id} have {defect}",
            hint="give --max-update-norm auto to refuse such updates",
        )


def check_clients_left(bad: BadClients, task: Task, fault: Fault, clients: int) -> None:
    """Raise an error if no client is left after a failed task, or if the run needs this task's client.

    Args:
        bad: The record of clients with failed tasks.
        task: The task.
        fault: Its failure.
        clients: The number of clients.

    Raises:
        InputError: The user's component or data made the task fail.
        RunFailed: The task failed for another reason.
    """
    if task.client in bad.left_out and bad.stopped:
        hint = "give --on-bad-client skip to continue without such clients"
        if task.client == bad.needed:
            hint = "start a run with another root client"
        problem = f"it failed {format_count(bad.retries + 1, 'time')} in a row, the last time with task {task.id}"
        raise _last_error(fault, f"client {task.client}", problem, hint)
    last = f"the last, client {task.client} with task {task.id}"
    hint = _hint_about(fault)
    if len(bad.left_out) == clients:
        failed = f"all {format_count(clients, 'client')} failed {format_count(bad.retries + 1, 'time')} in a row"
        raise _last_error(fault, "clients", f"{failed}; {last}", hint)
    if bad.hopeless:
        raise _last_error(fault, "clients", f"the first {MAX_FIRST_FAILURES} clients all failed; {last}", hint)


def _hint_about(fault: Fault) -> str:
    if "not finite" in fault.error:
        return "if training diverges, give a smaller --lr, or --clip 1; scale large targets of a regression"
    return ""


def _last_error(fault: Fault, field: str, problem: str, hint: str) -> StructuredError:
    """Return the InputError of the last failure with the problem as a note, or RunFailed if it has no InputError."""
    if fault.input_error is None:
        return RunFailed(field, f"{problem}: {fault.error}", hint=hint)
    fault.input_error.add_note("; ".join(filter(None, (f"{field}: {problem}", hint))))
    return fault.input_error
