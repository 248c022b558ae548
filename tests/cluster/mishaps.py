"""Failures of workers for tests."""

import os
import signal
import sys
import time
from pathlib import Path

import ray

# Workers cannot import this module.
ray.cloudpickle.register_pickle_by_value(sys.modules[__name__])

# Time for the answer to the previous call. Without it, the fault would be attributed to that call.
LEAVE_SECONDS = 0.5


def die() -> None:
    time.sleep(LEAVE_SECONDS)
    os.kill(os.getpid(), signal.SIGKILL)


def freeze() -> None:
    """Stop the whole process, as if its machine did nothing but swap memory."""
    time.sleep(LEAVE_SECONDS)
    os.kill(os.getpid(), signal.SIGSTOP)


def hang() -> None:
    time.sleep(3600)


def err() -> None:
    raise ArithmeticError("seven is not eight")


def first(mark: Path) -> bool:
    """Create the file `mark`. Return True if no other process has created it before."""
    try:
        mark.touch(exist_ok=False)
    except FileExistsError:
        return False
    return True
