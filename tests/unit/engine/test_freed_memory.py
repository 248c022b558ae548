"""Buffers that are freed and allocated again are not mapped again."""

import platform
import subprocess
import sys

import pytest

PROGRAM = """
import resource
import numpy as np
from fedraa.engine.freed_memory import keep_freed_memory

def page_faults():
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    for _ in range(10):
        buffers = [np.ones(150_000, np.float32) for _ in range(12)]
        del buffers
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before

keep_freed_memory()
page_faults()
print(page_faults())
"""


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="other C libraries have other limits")
def test_keep_freed_memory_reuses_the_pages_of_freed_buffers() -> None:
    result = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True, check=True)
    # Each of the 120 buffers has 147 pages.
    assert int(result.stdout) < 147
