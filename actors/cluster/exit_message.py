"""A message for the user if Ray ends this process without a Python exception."""

import subprocess
from collections.abc import Iterator
from contextlib import contextmanager

# This shell command reads a line. If its input ends without a line, it writes its argument to standard error.
WAIT = 'read -r left || printf "fedraa: %s\\n" "$0" >&2'


@contextmanager
def explain_exit(message: str) -> Iterator[None]:
    """Print a message on standard error if this process dies in the block.

    Ray ends this process without an exception if a raylet dies during the connection.
    """
    with subprocess.Popen(["sh", "-c", WAIT, message], stdin=subprocess.PIPE, start_new_session=True) as watcher:
        try:
            yield
        finally:
            watcher.communicate(b"left\n")
