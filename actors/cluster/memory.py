"""Settings of glibc's memory allocator for the processes of a private cluster."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

TUNABLES = "GLIBC_TUNABLES"
# mmap_threshold: by default glibc keeps freed blocks of up to 32 MB, so that a worker holds far more memory than it
# uses. With a fixed threshold of 4 MB, larger blocks return to the system immediately.
# trim_threshold: smaller blocks are on the heap. By default glibc returns its end to the system as soon as 128 kB are
# free, so that the kernel would map and clear the memory of the next update again.
# hugetlb: mapping a large block again is expensive unless its pages are huge.
# arena_max: actors with a liveness probe train in a thread. A separate memory arena for this thread would cost small
# models 10 % more CPU time.
MALLOC_SETTINGS = (
    "glibc.malloc.mmap_threshold=4194304:glibc.malloc.trim_threshold=33554432"
    ":glibc.malloc.hugetlb=1:glibc.malloc.arena_max=1"
)
HUGE_PAGES = Path("/sys/kernel/mm/transparent_hugepage/enabled")


@contextmanager
def return_freed_memory() -> Iterator[None]:
    """Set glibc's allocator for processes that start in the block, so that large freed blocks return to the system.

    Nothing is set if the kernel has no huge pages, or if the user has set the environment variable.
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
