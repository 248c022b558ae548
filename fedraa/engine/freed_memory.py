"""The C library's limit on freed memory that a process keeps for later use."""

import numpy as np

# glibc learns from freed blocks of at most 32 MiB.
BLOCK_BYTES = 31 * 2**20


def keep_freed_memory() -> None:
    """Let the C library keep freed memory of up to 62 MiB instead of returning it to the system.

    Otherwise the kernel maps and clears every page of the next update's buffer again, which can take longer than a
    short task. glibc raises its limit to twice the size of a freed block. The block here is never written, so it
    takes no memory. Other C libraries ignore it.
    """
    np.empty(BLOCK_BYTES, np.uint8)
