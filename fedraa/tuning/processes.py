"""Processes of this machine that execute calls, several at the same time."""

import multiprocessing
import multiprocessing.connection
import os
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from typing import Any

from fedraa.errors import Interrupted, RunFailed


@contextmanager
def explain_interruption(what: str) -> Iterator[None]:
    """Raise an error with the next step if the block is interrupted.

    Raises Interrupted after Ctrl-C, and RunFailed if a process was killed. `what` names the work of a process, such as
    `trial`.
    """
    try:
        yield
    except BrokenProcessPool:
        problem = f"a process of a {what} was killed, perhaps because the memory is full"
        raise RunFailed("jobs", problem, hint="continue with the same command and fewer --jobs") from None
    except KeyboardInterrupt:
        raise Interrupted(f"stopped; the same command continues with the {what}s that have not finished") from None


@contextmanager
def open_processes(jobs: int, prepare: Callable[[], object]) -> Iterator[Callable[..., Future[Any]]]:
    """Yield a function that calls another function in one of `jobs` processes.

    An error in the block ends the processes, but a process could still execute a call that waits for it. Therefore
    never have more than `jobs` calls at the same time. `prepare` is called when a process starts.
    """
    context = multiprocessing.get_context("spawn")
    earlier = set(multiprocessing.active_children())
    with ProcessPoolExecutor(jobs, context, _prepare_process, (prepare,)) as executor:
        try:
            yield executor.submit
        except BaseException:
            executor.shutdown(wait=False, cancel_futures=True)
            # A SIGTERM to this process does not end its child processes.
            for process in set(multiprocessing.active_children()) - earlier:
                process.terminate()
            raise


def _prepare_process(prepare: Callable[[], object]) -> None:
    """Prepare a new process. Start a thread that ends the process when its parent process ends."""
    prepare()
    parent = multiprocessing.parent_process()
    assert parent is not None

    def wait_for_parent() -> None:
        multiprocessing.connection.wait([parent.sentinel])
        os._exit(1)

    threading.Thread(target=wait_for_parent, daemon=True).start()
