"""Processes of a cluster of our own hold little more than they use; a version of a fragment is held once."""

import os
import platform
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import ray

from actors.cluster import memory
from actors.pool.data_blocks import Blocks
from actors.pool.serializer import INLINE_BYTES, TaskSerializer
from fedraa.messages import Task

BLOCK = 24 * 2**20
PARAMS = np.ones(INLINE_BYTES, np.float32)


def task(number: int, params: np.ndarray) -> Task:
    return Task(number, 0, 0, 0, 0, 0, (), params, 0.1, 1.0)


@pytest.mark.cluster
@pytest.mark.usefixtures("cluster")
def test_what_is_shared_is_sent_from_where_it_lies() -> None:
    serializer = TaskSerializer(
        Blocks(np.array([0, 1]), np.array([0, 1]), [(ray.put(np.zeros(1)), ray.put(np.zeros(1)))])
    )
    small = PARAMS[:10]
    assert serializer.share(small) is small

    shared = serializer.share(PARAMS)
    np.testing.assert_array_equal(shared, PARAMS)
    assert not shared.flags.writeable
    tasks = [task(0, shared), task(1, shared)]
    sent = []
    for one in tasks:
        serializer.expect(one)
        [job], shared_args = serializer.pack([one], serializer.blocks)
        [place] = job.arrays
        sent.append(shared_args[place])
    assert sent[0] == sent[1]
    lying = ray.get(sent[0])
    assert lying.ctypes.data == shared.ctypes.data  # no copy was put
    for one in tasks:
        serializer.release(one)
    assert not serializer._objects


HOLD = f"""
import numpy as np
first = np.ones({BLOCK}, np.uint8)
del first  # which by default raises the threshold to its size
second = np.ones({BLOCK}, np.uint8)
above = [bytearray(1000) for _ in range(1000)]
del second
print(next(line.split()[1] for line in open("/proc/self/status") if line.startswith("RssAnon")))
"""


def held() -> int:
    """Bytes that a process has of its own after two large blocks have come and gone."""
    return 1024 * int(subprocess.run([sys.executable, "-c", HOLD], capture_output=True, text=True, check=True).stdout)


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="another C library has other ways")
def test_large_blocks_go_back(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv(memory.TUNABLES, raising=False)
    (tmp_path / "enabled").write_text("always [madvise] never\n")
    monkeypatch.setattr(memory, "HUGE_PAGES", tmp_path / "enabled")
    without = held()
    with memory.lean():
        assert held() < without - 0.9 * BLOCK
    assert memory.TUNABLES not in os.environ


def test_users_tunables_and_kernels_without_huge_pages_are_left_alone(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv(memory.TUNABLES, "glibc.malloc.check=0")
    with memory.lean():
        assert os.environ[memory.TUNABLES] == "glibc.malloc.check=0"
    assert os.environ[memory.TUNABLES] == "glibc.malloc.check=0"
    monkeypatch.delenv(memory.TUNABLES)
    (tmp_path / "enabled").write_text("always madvise [never]\n")
    for path in (tmp_path / "enabled", tmp_path / "none"):
        monkeypatch.setattr(memory, "HUGE_PAGES", path)
        with memory.lean():
            assert memory.TUNABLES not in os.environ
