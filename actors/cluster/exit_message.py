"""A message that the user sees if Ray ends this process without a Python exception."""

import subprocess
from collections.abc import Iterator
from contextlib import contextmanager

# A shell command that waits for a line on its standard input. If the input ends without a line, the command writes its
# argument to standard error.
WAIT = 'read -r left || printf "fedraa: %s\\n" "$0" >&2'


@contextmanager
def explain_exit(message: str) -> Iterator[None]:
    """Make sure that a message appears on standard error if this process dies during the `with` block.

    Ray ends this process without an exception if a raylet dies while this process connects to it.
    """
    with subprocess.Popen(["sh", "-c", WAIT, message], stdin=subprocess.PIPE, start_new_session=True) as watcher:
        try:
            yield
        finally:
            watcher.communicate(b"left\n")
