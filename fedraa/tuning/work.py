"""Trials at work: in this process one after another, or several at a time, each in a process of its own."""

import multiprocessing
import os
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from multiprocessing.connection import wait as gone

from fedraa.errors import Interrupted
from fedraa.tuning.attempt import Attempt, attempt, repeated
from fedraa.tuning.journal import Journal, Trial
from fedraa.tuning.suggest import check_optuna

Plan = Callable[[str, int], Attempt]
Which = tuple[str, int]


def work(left: Sequence[Which], plan: Plan, journal: Journal, jobs: int) -> Iterator[Trial]:
    """Makes these trials and writes each down as it has ended; a trial is planned when it begins.

    Raises Interrupted after Ctrl-C.
    """
    try:
        yield from (_here(left, plan, journal) if jobs == 1 else _beside(left, plan, journal, jobs))
    except KeyboardInterrupt:
        raise Interrupted("stopped; the same command goes on with the trials that have not ended") from None


def _here(left: Sequence[Which], plan: Plan, journal: Journal) -> Iterator[Trial]:
    for which in left:
        asked = plan(*which)
        trial = repeated(asked, journal.of(asked.method)) or attempt(asked)
        journal.add(trial)
        yield trial


def _beside(left: Sequence[Which], plan: Plan, journal: Journal, jobs: int) -> Iterator[Trial]:
    waiting, out = list(reversed(left)), set[Future[Trial]]()
    context, others = multiprocessing.get_context("spawn"), set(multiprocessing.active_children())
    with ProcessPoolExecutor(jobs, mp_context=context, initializer=_begin) as executor:
        try:
            while waiting or out:
                while waiting and len(out) < jobs:
                    asked = plan(*waiting.pop())
                    if (trial := repeated(asked, journal.of(asked.method))) is None:
                        out.add(executor.submit(attempt, asked))
                        continue
                    journal.add(trial)
                    yield trial
                if out:
                    ended, out = wait(out, return_when=FIRST_COMPLETED)
                    for future in ended:
                        journal.add(trial := future.result())
                        yield trial
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
