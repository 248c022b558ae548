"""Trials at work: one after another in this process, or several at a time in processes of their own or on nodes."""

import multiprocessing
import os
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from contextlib import contextmanager
from multiprocessing.connection import wait as gone

from fedraa.api import calls
from fedraa.config.experiment import Experiment
from fedraa.errors import Interrupted
from fedraa.tuning.attempt import Attempt, attempt, attempt_elsewhere, repeated
from fedraa.tuning.journal import Journal, Trial
from fedraa.tuning.suggest import check_optuna

Plan = Callable[[str, int], Attempt]
Which = tuple[str, int]
Start = Callable[[Attempt], Future[Trial]]


def work(left: Sequence[Which], plan: Plan, journal: Journal, jobs: int, cluster: Experiment | None) -> Iterator[Trial]:
    """Makes these trials and writes each down as it has ended; a trial is planned when it begins.

    Those `jobs` at a time are made on the cluster of that experiment, or without one on this machine. Raises
    Interrupted after Ctrl-C.
    """
    if not left:
        return
    try:
        if cluster is not None:
            with calls(cluster, [cluster]) as submit:
                yield from _beside(left, plan, journal, jobs, lambda asked: submit(attempt_elsewhere, asked))
        elif jobs == 1:
            yield from _here(left, plan, journal)
        else:
            with _processes(jobs) as start:
                yield from _beside(left, plan, journal, jobs, start)
    except KeyboardInterrupt:
        raise Interrupted("stopped; the same command goes on with the trials that have not ended") from None


def _here(left: Sequence[Which], plan: Plan, journal: Journal) -> Iterator[Trial]:
    for which in left:
        asked = plan(*which)
        trial = repeated(asked, journal.of(asked.method)) or attempt(asked)
        journal.add(trial)
        yield trial


def _beside(left: Sequence[Which], plan: Plan, journal: Journal, jobs: int, start: Start) -> Iterator[Trial]:
    waiting, out = list(reversed(left)), set[Future[Trial]]()
    while waiting or out:
        while waiting and len(out) < jobs:
            asked = plan(*waiting.pop())
            if (trial := repeated(asked, journal.of(asked.method))) is None:
                out.add(start(asked))
                continue
            journal.add(trial)
            yield trial
        if out:
            ended, out = wait(out, return_when=FIRST_COMPLETED)
            for future in ended:
                journal.add(trial := future.result())
                yield trial


@contextmanager
def _processes(jobs: int) -> Iterator[Start]:
    context, others = multiprocessing.get_context("spawn"), set(multiprocessing.active_children())
    with ProcessPoolExecutor(jobs, mp_context=context, initializer=_begin) as executor:
        try:
            yield lambda asked: executor.submit(attempt, asked)
        except BaseException:
            executor.shutdown(wait=False, cancel_futures=True)
            for process in set(multiprocessing.active_children()) - others:  # SIGTERM may have been for this one alone
                process.terminate()
            raise


def _begin() -> None:
    """A process for trials: quiet, and gone when the tuning is killed."""
    check_optuna()
    parent = multiprocessing.parent_process()
    assert parent is not None

    def watch() -> None:
        gone([parent.sentinel])
        os._exit(1)

    threading.Thread(target=watch, daemon=True).start()
