"""What a run, a log or a checkpoint may come to, besides the mistakes of a user, which are ValueError."""

from collections.abc import Iterator
from contextlib import contextmanager


class Interrupted(KeyboardInterrupt):
    """A run was stopped before its end; the message says where, and how to go on."""


class RunWarning(UserWarning):
    """A run can go on, but is probably not what the user wants; the message says why in one sentence."""


class RunFailed(Exception):
    """The run cannot go on; the message says why in one sentence."""


class Unwritable(RunFailed):
    """The run directory takes no more, as when the disk is full; the run can go on from its last checkpoint later."""


class ShardDied(Exception):
    """A shard of the server is gone, and what it held with it; the run goes on from its last checkpoint."""


class Damaged(Exception):
    """A checkpoint that is not what was written; the message says how."""


class Inconsistent(Exception):
    """A run contradicts its rules; the message names the line, what it says and what the rules give."""


class PromiseBroken(Exception):
    """A part does not keep what runs are built on; the message names it, and how many promises it breaks."""


class CallbackRaised(Exception):
    """A callback raised `error`, which the user gets to see once the run is saved.

    None where that is known in the user's process alone.
    """

    def __init__(self, error: Exception | SystemExit | None) -> None:
        super().__init__(repr(error))
        self.error = error


@contextmanager
def staying() -> Iterator[None]:
    """Within, a client's code that calls `sys.exit` ends its task alone, and not the process; RuntimeError says so."""
    try:
        yield
    except SystemExit as error:
        raise RuntimeError(f"sys.exit({error.code!r}) was called") from error
