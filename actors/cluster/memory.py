"""How the processes of a cluster of our own take memory from the system."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

TUNABLES = "GLIBC_TUNABLES"
# By default glibc raises the threshold to 32 MB as blocks are freed, and keeps as much of what it got: a worker then
# holds far more than it uses. Mapping every large block anew costs page faults, unless its pages are huge. Actors that
# have a pulse train in a thread: in an arena of its own that takes a tenth more CPU time, for small models.
LEAN = "glibc.malloc.mmap_threshold=4194304:glibc.malloc.hugetlb=1:glibc.malloc.arena_max=1"
HUGE_PAGES = Path("/sys/kernel/mm/transparent_hugepage/enabled")


@contextmanager
def lean() -> Iterator[None]:
    """Processes started within give large blocks back as soon as these are free, where that costs no time.

    Unless the user has tunables of their own.
    """
    if TUNABLES in os.environ or not _huge_pages():
        yield
        return
    os.environ[TUNABLES] = LEAN
    try:
        yield
    finally:
        del os.environ[TUNABLES]


def _huge_pages() -> bool:
    """Whether the kernel gives huge pages to those who ask."""
    return HUGE_PAGES.exists() and "[never]" not in HUGE_PAGES.read_text()
