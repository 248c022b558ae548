"""Processes of a private cluster return freed memory to the system. A version of a fragment is in memory once."""

import os
import platform
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import ray

from actors.cluster import memory
from actors.pool.serializer import INLINE_BYTES, Blocks, TaskSerializer
from fedraa.messages import SharedBuffer, Task

BLOCK = 24 * 2**20
PARAMS = np.ones(INLINE_BYTES, np.float32)


def task(number: int, params: SharedBuffer) -> Task:
    return Task(number, 0, 0, 0, 0, 0, (), params, 0.1, 1.0)


@pytest.mark.cluster
@pytest.mark.usefixtures("cluster")
def test_shared_buffer_is_stored_once_for_all_tasks_that_carry_it() -> None:
    blocks = Blocks(np.array([0, 1]), np.array([0, 1]), [(ray.put(np.zeros(1)), ray.put(np.zeros(1)))])
    serializer = TaskSerializer()
    assert serializer.share(PARAMS[:10]).values.base is PARAMS

    for shared, copies in ((serializer.share(PARAMS), 0), (SharedBuffer(PARAMS), 1)):
        sent = []
        for number in range(2):
            [job], shared_args = serializer.pack([task(number, shared)], blocks)
            sent.append(shared_args[job.buffer])
        assert sent[0] == sent[1]
        stored = ray.get(sent[0])
        np.testing.assert_array_equal(stored, PARAMS)
        assert not stored.flags.writeable
        assert (stored.ctypes.data == shared.values.ctypes.data) == (copies == 0)
    # Buffers that no task carries are freed.
    assert len(serializer._refs) == 1
    del shared
    assert not serializer._refs


HOLD = f"""
import numpy as np
first = np.ones({BLOCK}, np.uint8)
del first  # which by default raises the threshold to its size
second = np.ones({BLOCK}, np.uint8)
above = [bytearray(1000) for _ in range(1000)]
del second
print(next(line.split()[1] for line in open("/proc/self/status") if line.startswith("RssAnon")))
"""


def private_bytes() -> int:
    """Return the private bytes of a process after two large blocks were allocated and freed."""
    return 1024 * int(subprocess.run([sys.executable, "-c", HOLD], capture_output=True, text=True, check=True).stdout)


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="only glibc has these tunables")
def test_freed_large_blocks_return_to_the_system(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv(memory.TUNABLES, raising=False)
    (tmp_path / "enabled").write_text("always [madvise] never\n")
    monkeypatch.setattr(memory, "HUGE_PAGES", tmp_path / "enabled")
    without = private_bytes()
    with memory.return_freed_memory():
        assert private_bytes() < without - 0.9 * BLOCK
    assert memory.TUNABLES not in os.environ


def test_tunables_stay_unchanged_if_the_user_sets_them_or_huge_pages_are_off(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv(memory.TUNABLES, "glibc.malloc.check=0")
    with memory.return_freed_memory():
        assert os.environ[memory.TUNABLES] == "glibc.malloc.check=0"
    assert os.environ[memory.TUNABLES] == "glibc.malloc.check=0"
    monkeypatch.delenv(memory.TUNABLES)
    (tmp_path / "enabled").write_text("always madvise [never]\n")
    for path in (tmp_path / "enabled", tmp_path / "none"):
        monkeypatch.setattr(memory, "HUGE_PAGES", path)
        with memory.return_freed_memory():
            assert memory.TUNABLES not in os.environ
