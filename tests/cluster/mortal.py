"""Child processes that end when the process of the test ends."""

import ctypes
import signal

PR_SET_PDEATHSIG = 1
libc = ctypes.CDLL(None)


def with_its_parent() -> None:
    """Request SIGTERM at the death of the parent, for `preexec_fn`. `ray start` then ends its processes."""
    libc.prctl(PR_SET_PDEATHSIG, signal.SIGTERM)
