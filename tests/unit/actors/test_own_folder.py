"""The folders of a run are closed to other users, and removed only after their owner has ended."""

import subprocess
import sys
import time
from pathlib import Path

import pytest

from actors.cluster.own_folder import MAX_PARENT_LENGTH, is_own, own_folder, remove_abandoned

KILLED = """
import os, signal, subprocess, sys
from actors.cluster import own_folder
own_folder.MAX_PARENT_LENGTH = 1000  # not in /tmp, where others sweep
with own_folder.own_folder() as folder:
    with (folder / "log").open("w") as log:
        child = subprocess.Popen(["sleep", "1000"], stdout=log, stderr=log)
    print(folder, child.pid, flush=True)
    os.kill(child.pid, signal.SIGSTOP)
    os.kill(os.getpid(), signal.SIGKILL)
"""


@pytest.fixture(autouse=True)
def temporary_root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("actors.cluster.own_folder.MAX_PARENT_LENGTH", 1000)
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr("tempfile.tempdir", None)


def test_folder_is_private_and_removed_with_its_owner(tmp_path: Path) -> None:
    with own_folder() as folder:
        assert folder.parent == tmp_path
        assert is_own(folder)
        assert folder.stat().st_mode & 0o777 == 0o700
        (folder / "ray").mkdir()
    assert not folder.exists()


@pytest.mark.linux
def test_next_start_removes_folder_and_frozen_processes_of_a_killed_owner(tmp_path: Path) -> None:
    killed = subprocess.run([sys.executable, "-c", KILLED], capture_output=True, text=True, check=False)
    folder, child = killed.stdout.split()
    assert Path(folder).exists()
    # A folder of another program has no owner file.
    (tmp_path / "fedraa-mine").mkdir()
    with own_folder() as ours:
        assert sorted(tmp_path.iterdir()) == sorted([ours, tmp_path / "fedraa-mine"])
        remove_abandoned(tmp_path)
        assert ours.exists()
    give_up = time.monotonic() + 30
    # The signal may arrive later.
    while _runs(int(child)):
        assert time.monotonic() < give_up
        time.sleep(0.01)


def test_folder_path_is_short_enough_for_the_sockets_of_ray() -> None:
    name = "/fedraa-12345678/ray/session_2026-11-22_03-50-13_300402_1234567/sockets/plasma_store"
    assert MAX_PARENT_LENGTH + len(name) <= 107


def _runs(process: int) -> bool:
    try:
        return Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False
