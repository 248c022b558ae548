"""Systems such as macOS, which have no /proc and /sys: plan, run, replay and doctor work as on Linux."""

import os
import sys
import time
from pathlib import Path

import pytest

from actors.cluster import memory, processes
from fedraa.cli import doctor
from fedraa.cli.main import main
from fedraa.engine import memory_check
from fedraa.rundir.history import History

RUN = ("--updates", "8", "--hidden", "8", "--local-steps", "1", "--engine", "local")


@pytest.fixture
def without_proc(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Remove the files and calls that only Linux has. The cache of traces, which reads them also, is new."""
    missing = tmp_path / "missing"
    monkeypatch.setattr(memory_check, "MEMORY_INFO", missing)
    monkeypatch.setattr(memory_check, "CONTROL_GROUP", missing)
    monkeypatch.setattr(processes, "PROC", missing)
    monkeypatch.setattr(memory, "HUGE_PAGES", missing)
    monkeypatch.setattr(doctor, "SHARED_MEMORY", missing)
    monkeypatch.setattr(doctor, "CPU_QUOTA", missing)
    monkeypatch.setattr(sys, "platform", "darwin")
    monkeypatch.delattr(os, "sched_getaffinity", raising=False)
    monkeypatch.delattr(time, "CLOCK_BOOTTIME", raising=False)
    monkeypatch.setenv("FEDRAA_CACHE", str(tmp_path / "cache"))


@pytest.mark.usefixtures("without_proc")
def test_commands_work_and_give_the_same_bits(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    other, here = str(tmp_path / "other"), str(tmp_path / "here")
    assert main(["plan", *RUN]) == 0
    assert main(["run", *RUN, "--quiet", "--out", other]) == 0
    assert main(["replay", other]) == 0
    capsys.readouterr()
    assert main(["doctor"]) == 0
    assert "unknown on this system" in capsys.readouterr().out
    monkeypatch.undo()
    assert main(["run", *RUN, "--quiet", "--out", here]) == 0
    assert History(other).summary["model_sha256"] == History(here).summary["model_sha256"]
