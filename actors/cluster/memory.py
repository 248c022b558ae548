"""Memory settings of the processes of a private cluster."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

TUNABLES = "GLIBC_TUNABLES"
# By default glibc raises the threshold up to 32 MB when blocks are freed, and keeps free memory up to this amount, so
# that a worker holds far more memory than it uses. Mapping every large block again costs page faults, unless the pages
# are huge. Actors with a liveness probe train in a thread. A separate arena for this thread costs small models a tenth
# more CPU time.
MALLOC_SETTINGS = "glibc.malloc.mmap_threshold=4194304:glibc.malloc.hugetlb=1:glibc.malloc.arena_max=1"
HUGE_PAGES = Path("/sys/kernel/mm/transparent_hugepage/enabled")


@contextmanager
def return_freed_memory() -> Iterator[None]:
    """Let child processes return large freed blocks to the system at once, if huge pages make this cheap.

    A value of the environment variable that the user has set takes precedence.
    """
    if TUNABLES in os.environ or not _huge_pages():
        yield
        return
    os.environ[TUNABLES] = MALLOC_SETTINGS
    try:
        yield
    finally:
        del os.environ[TUNABLES]


def _huge_pages() -> bool:
    """Return True if the kernel provides huge pages on request."""
    return HUGE_PAGES.exists() and "[never]" not in HUGE_PAGES.read_text()
