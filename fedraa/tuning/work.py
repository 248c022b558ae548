"""The execution of trials: in sequence in this process, or in parallel in other processes or on nodes."""

import pickle
import sys
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, wait
from contextlib import AbstractContextManager
from functools import partial
from typing import Any

from fedraa.errors import InputError, one_line
from fedraa.tuning.attempt import Attempt, find_repeated, run_attempt, run_on_node
from fedraa.tuning.journal import Journal, Trial
from fedraa.tuning.processes import explain_interruption, open_processes
from fedraa.tuning.suggest import check_optuna

Plan = Callable[[str, int], Attempt]
# The method and the number of a trial.
TrialKey = tuple[str, int]
Start = Callable[[Attempt], Future[Trial]]
# The type of a function that opens the nodes of a cluster. Its context manager yields a function `submit`, which calls
# another function on a node.
OpenNodes = Callable[[], AbstractContextManager[Callable[..., Future[Any]]]]


def run_trials(
    left: Sequence[TrialKey],
    plan: Plan,
    journal: Journal,
    jobs: int,
    open_nodes: OpenNodes | None,
) -> Iterator[Trial]:
    """Run trials and yield their results. A trial gets its values when it starts, and is recorded when it ends.

    Args:
        left: The trials that have not finished.
        plan: Returns the plan of a trial.
        journal: The journal of finished trials.
        jobs: The number of trials at the same time.
        open_nodes: Opens the nodes on which trials run; None for this machine.

    Raises Interrupted after Ctrl-C, and RunFailed if a process of a trial was killed.
    """
    if not left:
        return
    with explain_interruption("trial"):
        if open_nodes is not None:
            with open_nodes() as submit:
                yield from _run_concurrently(left, plan, journal, jobs, partial(submit, run_on_node))
        elif jobs == 1:
            yield from _run_in_sequence(left, plan, journal)
        else:
            with open_processes(jobs, check_optuna) as submit:
                yield from _run_concurrently(left, plan, journal, jobs, partial(submit, run_attempt))


def _run_in_sequence(left: Sequence[TrialKey], plan: Plan, journal: Journal) -> Iterator[Trial]:
    for method, number in left:
        planned = plan(method, number)
        trial = find_repeated(planned, journal.of(planned.method)) or run_attempt(planned)
        journal.add(trial)
        yield trial


def _run_concurrently(
    left: Sequence[TrialKey], plan: Plan, journal: Journal, jobs: int, start: Start
) -> Iterator[Trial]:
    """Run up to `jobs` trials at the same time. `start` starts a trial."""
    waiting = deque(left)
    running: set[Future[Trial]] = set()
    while waiting or running:
        while waiting and len(running) < jobs:
            planned = plan(*waiting.popleft())
            repetition = find_repeated(planned, journal.of(planned.method))
            if repetition is None:
                running.add(start(planned))
                continue
            journal.add(repetition)
            yield repetition
        if running:
            ended, running = wait(running, return_when=FIRST_COMPLETED)
            for future in ended:
                trial = future.result()
                journal.add(trial)
                yield trial


def refuse_unsendable(parts: Mapping[str, object]) -> None:
    """Raise InputError if an object cannot be sent to other processes of this machine. The error contains its name."""
    script = hasattr(sys.modules["__main__"], "__file__")
    for name, part in parts.items():
        try:
            content = pickle.dumps(part)
        # A user-defined component may raise any exception.
        except Exception as error:
            reason = one_line(error) or type(error).__name__
        else:
            if script or b"__main__" not in content:
                continue
            reason = "its code is in a notebook or in no file"
        raise InputError(
            "jobs",
            f"the {name} cannot be sent to other processes: {reason}",
            hint="use jobs=1, or define it in a module",
        )
