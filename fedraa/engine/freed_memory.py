"""A setting of the C library: the amount of freed memory that a process keeps for later use."""

import numpy as np

# glibc returns freed memory above a limit to the system. Freeing a block of up to 32 MiB raises the limit to twice the
# block's size.
BLOCK_BYTES = 31 * 2**20


def keep_freed_memory() -> None:
    """Let the C library keep freed memory of up to 62 MiB instead of returning it to the system.

    Otherwise the kernel clears every page of the next update's buffer again, which can take longer than a short task. C
    libraries other than glibc ignore this call.
    """
    np.empty(BLOCK_BYTES, np.uint8)
