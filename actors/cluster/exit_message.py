"""A message for the case that Ray ends this process, which leaves no time for an exception."""

import subprocess
from collections.abc import Iterator
from contextlib import contextmanager

# A shell that waits for a line, and writes its argument to standard error if the input ends first.
WAIT = 'read -r left || printf "fedraa: %s\\n" "$0" >&2'


@contextmanager
def explain_exit(message: str) -> Iterator[None]:
    """Write a message to standard error if this process ends within the context.

    Ray ends the process without an exception if a raylet dies while the process registers.
    """
    with subprocess.Popen(["sh", "-c", WAIT, message], stdin=subprocess.PIPE, start_new_session=True) as watcher:
        try:
            yield
        finally:
            watcher.communicate(b"left\n")
