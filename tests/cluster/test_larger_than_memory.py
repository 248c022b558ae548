"""A mapped array of 3 GB on two workers on Ray: their memory, sampled while the example runs."""

import os
import re
import subprocess
import sys
import time
from collections import defaultdict
from pathlib import Path

import pytest

from benchmarks.system.processes import PROC, list_descendants, process_title

ROOT = Path(__file__).parents[2]
# Bytes of RSS, with pages that are mapped from files or shared with the object store.
BOUND = 600e6


def memory_by_kind(process: int) -> dict[str, int]:
    """Return bytes of RAM by kind: `peak` is the maximum of all pages, `anon` are private, `file` mapped from files.

    The result is empty if the process has ended.
    """
    names = {"VmHWM": "peak", "RssAnon": "anon", "RssFile": "file", "RssShmem": "shmem"}
    try:
        lines = (PROC / str(process) / "status").read_text().splitlines()
    except OSError:
        return {}
    pairs = (line.partition(":")[::2] for line in lines)
    return {names[name]: int(value.split()[0]) * 1024 for name, value in pairs if name in names}


@pytest.mark.linux
@pytest.mark.cluster
@pytest.mark.slow
def test_a_worker_stays_under_600_mb_with_an_array_of_3_gb(tmp_path: Path) -> None:
    path = os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])
    example = subprocess.Popen(
        [sys.executable, ROOT / "examples" / "larger_than_memory.py"],
        cwd=tmp_path,
        env=os.environ | {"PYTHONPATH": path},
        stdout=subprocess.PIPE,
        text=True,
    )
    most: dict[int, dict[str, int]] = defaultdict(dict)
    while example.poll() is None:
        for process in list_descendants(example.pid):
            if process_title(process).startswith("ray::Worker"):
                seen = memory_by_kind(process)
                most[process] |= {name: max(size, most[process].get(name, 0)) for name, size in seen.items()}
        time.sleep(0.05)
    said, _ = example.communicate()
    assert example.returncode == 0
    assert re.search(r"3000 MB .*200 clients: accuracy \d", said)
    assert len(most) >= 2
    for worker in most.values():
        # The kernel records the maximum, which samples could miss.
        assert worker["peak"] < BOUND, worker
