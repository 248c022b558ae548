"""A setting of the C library: how much freed memory a process keeps for later use."""

import numpy as np

# glibc returns freed memory above a limit to the system. The release of a larger block raises the limit, if the block
# has at most 32 MiB.
BLOCK_BYTES = 31 * 2**20


def keep_freed_memory() -> None:
    """Let the C library keep freed memory of up to 62 MiB instead of returning it to the system.

    Without this, the kernel maps and clears every page of the next update's buffer again, which can take longer than a
    short task. To raise the limit, this function allocates and frees a large block: glibc sets its limit to twice the
    size of a freed block. The block is never written, so it takes no memory. Other C libraries ignore it.
    """
    np.empty(BLOCK_BYTES, np.uint8)
