"""Settings of glibc's memory allocator for the processes of a private cluster."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

TUNABLES = "GLIBC_TUNABLES"
# mmap_threshold: by default glibc keeps freed blocks of up to 32 MB, so that a worker holds far more memory than it
# uses. With this threshold, blocks above 4 MB return to the system immediately.
# trim_threshold: by default glibc returns the free end of the heap as soon as it has 128 kB, and the kernel would clear
# this memory again for the next updates.
# hugetlb: with huge pages, it is cheaper to get a large block from the system again.
# arena_max: actors train in a thread. With a separate memory arena for this thread, small models would need 10 % more
# CPU time.
MALLOC_SETTINGS = (
    "glibc.malloc.mmap_threshold=4194304:glibc.malloc.trim_threshold=33554432"
    ":glibc.malloc.hugetlb=1:glibc.malloc.arena_max=1"
)
HUGE_PAGES = Path("/sys/kernel/mm/transparent_hugepage/enabled")


@contextmanager
def return_freed_memory() -> Iterator[None]:
    """Set environment variables for processes that start in the block: their glibc returns large freed blocks at once.

    Nothing is set if the kernel has no huge pages, or if the user has already set the variable.
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
