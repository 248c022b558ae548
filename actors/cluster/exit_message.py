"""A message that appears if Ray ends this process abruptly, without an exception."""

import subprocess
from collections.abc import Iterator
from contextlib import contextmanager

# A shell command that waits for a line. If the input ends before a line, it writes its argument to standard error.
WAIT = 'read -r left || printf "fedraa: %s\\n" "$0" >&2'


@contextmanager
def explain_exit(message: str) -> Iterator[None]:
    """Write a message to standard error if this process ends during the `with` block.

    Ray ends the process without an exception if a raylet dies while the process connects to it.
    """
    with subprocess.Popen(["sh", "-c", WAIT, message], stdin=subprocess.PIPE, start_new_session=True) as watcher:
        try:
            yield
        finally:
            watcher.communicate(b"left\n")
