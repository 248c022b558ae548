"""The benchmark of frameworks: all systems do the same work, and each process is measured."""

import csv
import mmap
import os
import sys
from pathlib import Path

import pytest
from refusals import refuses

from benchmarks.system import peers
from benchmarks.system.processes import unique_bytes
from benchmarks.system.rows import write_table

TINY = {"clients": 6, "cohort": 2, "samples": 20, "batch": 10, "rounds": 3, "hidden": (4,)}


def test_main_writes_a_row_per_system_and_keeps_rows_of_other_workloads(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(peers, "WORKLOADS", {"tiny": ((1, 4, 4), TINY)})
    out = tmp_path / "peers.csv"
    write_table(out, peers.COLUMNS, [dict.fromkeys(peers.COLUMNS, "1") | {"workload": "earlier", "system": "bare"}])
    peers.main(("tiny",), ("fedraa-local",), repeats=1, out=out)
    rows = list(csv.DictReader(out.open()))
    assert [(row["workload"], row["system"]) for row in rows] == [
        ("earlier", "bare"),
        ("tiny", "bare"),
        ("tiny", "fedraa-local"),
    ]
    assert rows[1]["ratio"] == "1.00"
    # Processes with PyTorch, which have trained to a similar accuracy.
    assert all(float(row["memory_mb"]) > 50 for row in rows[1:])
    assert abs(float(rows[1]["accuracy"]) - float(rows[2]["accuracy"])) < 0.1


def test_an_asynchronous_workload_has_rows_only_of_systems_that_can_run_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    workload = TINY | {"cohort": 6, "convolutions": (3,), "asynchronous": True}
    monkeypatch.setattr(peers, "WORKLOADS", {"tiny": ((1, 4, 4), workload)})
    monkeypatch.setattr(peers, "find_python", lambda system, environments: Path(sys.executable))
    out = tmp_path / "peers.csv"
    peers.main(("tiny",), ("fedraa-local", "pfl"), repeats=1, out=out)
    assert [row["system"] for row in csv.DictReader(out.open())] == ["bare", "fedraa-local"]


def test_unique_bytes_grows_with_private_memory() -> None:
    before = unique_bytes(os.getpid())
    with mmap.mmap(-1, 50_000_000) as block:
        block.write(b"x" * len(block))
        assert unique_bytes(os.getpid()) - before > 40_000_000


def test_an_unknown_system_is_refused(tmp_path: Path) -> None:
    with refuses("systems", got="fedml"):
        peers.main(("lr-mnist",), ("fedml",), out=tmp_path / "peers.csv")
