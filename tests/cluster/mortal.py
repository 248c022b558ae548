"""Child processes that end when the process of the test ends."""

import ctypes
import signal

PR_SET_PDEATHSIG = 1
libc = ctypes.CDLL(None)


def with_its_parent() -> None:
    """Request SIGTERM at the death of the parent, for `preexec_fn`. `ray start` then ends its processes.

    Only Linux has this request. On other systems, a child may outlive a test process that is killed.
    """
    if hasattr(libc, "prctl"):
        libc.prctl(PR_SET_PDEATHSIG, signal.SIGTERM)
