"""The benchmark of GPUs, which measures smaller workloads if there is no GPU."""

import csv
from dataclasses import replace
from pathlib import Path

import pytest
from refusals import refuses

from benchmarks.system import gpu
from benchmarks.system.gpu_work import WORKLOADS, BareLoop

TINY = replace(WORKLOADS["lr-mnist"], clients=4, cohort=4, samples=20, rounds=1)


def test_main_writes_a_row_per_system_and_both_runs_have_the_same_bits(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gpu, "WORKLOADS", {"tiny": TINY})
    gpu.main("cpu", workloads=("tiny",), stacks=(1, 4, 8), out=tmp_path / "gpu.csv")
    rows = list(csv.DictReader((tmp_path / "gpu.csv").open()))
    measured = [(row["system"], row["vmap_batch"], row["same_bits"]) for row in rows if row["system"] != "pfl-research"]
    assert measured == [
        ("bare PyTorch", "", ""),
        ("fedraa, this process", "1", "yes"),
        ("fedraa, this process", "4", "yes"),
    ]
    assert all(float(row["round_ms"]) > 0 for row in rows)


def test_the_bare_loop_trains_each_client_of_the_cohort() -> None:
    loop = BareLoop(replace(TINY, clients=6), "cpu")
    trained: list[int] = []
    train_client = loop._train_client
    loop._train_client = lambda client: trained.append(client) or train_client(client)  # type: ignore[func-returns-value]
    before = [value.clone() for value in loop._model.state_dict().values()]
    loop.round()
    assert len(set(trained)) == TINY.cohort
    assert any((old != new).any() for old, new in zip(before, loop._model.state_dict().values(), strict=True))


def test_an_unknown_workload_is_refused(tmp_path: Path) -> None:
    with refuses("workloads", got="resnet"):
        gpu.main("cpu", workloads=("resnet",), out=tmp_path / "gpu.csv")
