"""Processes that tests start, and that must not outlive these, however they end."""

import ctypes
import signal

PR_SET_PDEATHSIG = 1
libc = ctypes.CDLL(None)


def with_its_parent() -> None:
    """For `preexec_fn`: SIGTERM when the parent dies, upon which `ray start` ends what it has started."""
    libc.prctl(PR_SET_PDEATHSIG, signal.SIGTERM)
