"""Child processes that end when the process of the test ends."""

import ctypes
import signal

PR_SET_PDEATHSIG = 1
libc = ctypes.CDLL(None)


def end_with_parent() -> None:
    """Let the system send SIGTERM when the parent dies, so that `ray start` ends its processes. For `preexec_fn`.

    Only Linux can do this. On other systems, a child may outlive a test process that is killed.
    """
    if hasattr(libc, "prctl"):
        libc.prctl(PR_SET_PDEATHSIG, signal.SIGTERM)
