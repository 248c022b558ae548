"""Failures of workers for tests."""

import os
import signal
import sys
import time
from pathlib import Path

import ray

ray.cloudpickle.register_pickle_by_value(sys.modules[__name__])  # workers cannot import it

LEAVE_SECONDS = 1.0  # for the answer to the call before; a worker that takes it along is blamed for that call


def die() -> None:
    time.sleep(LEAVE_SECONDS)
    os.kill(os.getpid(), signal.SIGKILL)


def freeze() -> None:
    """Stop the whole process, like a machine that only swaps memory."""
    time.sleep(LEAVE_SECONDS)
    os.kill(os.getpid(), signal.SIGSTOP)


def hang() -> None:
    time.sleep(3600)


def err() -> None:
    raise ArithmeticError("seven is not eight")


def first(mark: Path) -> bool:
    """Return True for the first process that makes the mark, and make it."""
    try:
        mark.touch(exist_ok=False)
    except FileExistsError:
        return False
    return True
