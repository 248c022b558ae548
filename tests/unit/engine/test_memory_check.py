"""A run that cannot fit into memory is refused before the start, with the numbers and a run that would fit."""

import math
import socket
import sys
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from refusals import refuses

import fedraa as fl
from fedraa.config.experiment import Experiment
from fedraa.engine import memory_check
from fedraa.engine.build import build_run
from fedraa.engine.memory_check import GPU_CONTEXT_BYTES, PROCESS_BYTES, Free, Need, check_memory


def test_a_small_run_fits_this_machine() -> None:
    check_memory(build_run(Experiment()))


def test_the_memory_of_ram_fed_is_one_model_per_client() -> None:
    """The memory is four bytes times d times (clients + 3): an update per client, and their mean, change and count."""
    spec = build_run(Experiment(method="ram-fed", clients=100))
    d = spec.params.size
    assert Need.of(spec).server == 4 * d * (100 + 3) + 3 * 4 * d


@pytest.mark.parametrize(
    ("aggregator", "clients", "rows"),
    [("median", 8, 8), ("krum(attackers=2)", 8, 8 * 3), ("krum(attackers=2)", 20, 8 * 3), ("krum", 100, 100)],
)
def test_memory_of_krum_has_a_row_for_each_fragment_of_a_client(aggregator: str, clients: int, rows: int) -> None:
    """A row and its counts need 8 bytes per parameter, the results of the aggregator 24, and the buffer 9."""
    rule = {"async_rule": "buffer(size=8)", "aggregator": aggregator}
    spec = build_run(Experiment(method="fed-raa", fragments=3, clients=clients, **rule))
    assert spec.update_bytes(clients) == spec.params.size * (8 * rows + 24 + 9)


def test_ram_fed_with_too_many_clients_names_the_number_that_fits() -> None:
    spec = build_run(Experiment(method="ram-fed", clients=100, workers=1))
    need = Need.of(spec)
    room = need.data + need.worker + need.server
    check_memory(spec, Free(room, None))
    with refuses("clients", "ram-fed", got=100) as refused:
        check_memory(spec, Free(room - need.server / 2, None))
    few = int(refused.value.expected.removeprefix("at most "))
    assert 40 <= few <= 60
    check_memory(build_run(Experiment(method="ram-fed", clients=few, workers=1)), Free(room - need.server / 2, None))


def test_model_that_never_fits_is_refused() -> None:
    with refuses("memory", "fedavg"):
        check_memory(build_run(Experiment(method="fedavg")), Free(PROCESS_BYTES / 2, None))


def test_too_many_workers_names_the_number_that_fits() -> None:
    spec = build_run(Experiment(workers=8))
    need = Need.of(spec)
    free = Free(need.server + need.data + 3.5 * need.worker, None)
    with refuses("workers", "needs 0.2", "at most 3", got=8):
        check_memory(spec, free)
    check_memory(build_run(Experiment(workers=3)), free)


def test_too_many_workers_for_the_gpu_names_the_number_that_fits() -> None:
    spec = build_run(Experiment(workers=4))
    with refuses("workers", "needs 0.4", "1 GB free", "at most 2", got=4):
        check_memory(spec, Free(1e12, 1e9))
    with refuses("workers", "--device cpu", got=4):
        check_memory(spec, Free(1e12, GPU_CONTEXT_BYTES / 2))


def test_generated_clients_beyond_the_memory_are_refused_before_their_arrays_are_made() -> None:
    samples = np.zeros((4, 2), np.float32), np.arange(4) % 2
    data = fl.FederatedDataset("made", lambda client: samples, samples, classes=2, sizes=4)
    # A device has five numbers of eight bytes.
    with refuses("clients", "40 TB", got=10**12):
        build_run(Experiment(clients=10**12), dataset=data)


@pytest.mark.parametrize("engine", ["local", "ray"])
def test_unknown_free_memory_refuses_no_run(engine: str) -> None:
    check_memory(build_run(Experiment(engine=engine)), Free(math.inf, None))


@pytest.mark.parametrize(("other", "is_refused"), [("this", True), ("far", False)])
def test_memory_of_this_machine_is_not_checked_for_a_cluster_with_other_machines(
    other: str, is_refused: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The user's program has called `ray.init`."""
    monkeypatch.setattr(socket, "gethostname", lambda: "this")
    spec = build_run(Experiment(workers=3))
    nodes = [
        {"NodeManagerHostname": name, "Alive": alive} for name, alive in (("this", True), (other, True), ("", False))
    ]
    ray = SimpleNamespace(is_initialized=lambda: True, nodes=lambda: nodes)
    monkeypatch.setitem(sys.modules, "ray", ray)
    with refuses("memory") if is_refused else nullcontext():
        check_memory(spec, Free(PROCESS_BYTES / 2, None))


def test_free_memory_without_numbers_of_the_kernel_is_infinite(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(memory_check, "MEMORY_INFO", tmp_path / "meminfo")
    monkeypatch.setattr(memory_check, "_group_left", lambda: float("inf"))
    assert memory_check.free_memory() == float("inf")
    (tmp_path / "meminfo").write_text("MemTotal: 9 kB\n")
    assert memory_check.free_memory() == float("inf")
    (tmp_path / "meminfo").write_text("MemTotal: 9 kB\nMemAvailable:       4 kB\n")
    assert memory_check.free_memory() == 4096


@pytest.mark.parametrize(
    ("limit", "used", "allowed", "left"),
    [
        ("memory.max", "memory.current", "max", math.inf),
        ("memory.max", "memory.current", "5000", 4300),
        ("memory/memory.limit_in_bytes", "memory/memory.usage_in_bytes", "5000", 4300),
        # Without a limit, version 1 of control groups reports the largest multiple of the page size (4 kB, 64 kB) below
        # 2^63.
        ("memory/memory.limit_in_bytes", "memory/memory.usage_in_bytes", str(2**63 - 4096), math.inf),
        ("memory/memory.limit_in_bytes", "memory/memory.usage_in_bytes", str(2**63 - 65536), math.inf),
    ],
)
def test_free_memory_is_bounded_by_the_control_group(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, limit: str, used: str, allowed: str, left: float
) -> None:
    monkeypatch.setattr(memory_check, "MEMORY_INFO", tmp_path / "meminfo")
    monkeypatch.setattr(memory_check, "CONTROL_GROUP", tmp_path)
    (tmp_path / limit).parent.mkdir(exist_ok=True)
    (tmp_path / limit).write_text(f"{allowed}\n")
    (tmp_path / used).write_text("1000\n")
    # The 300 bytes of cached files that no process uses count as free.
    counters = "active_file 200\ninactive_file 300\ntotal_active_file 200\ntotal_inactive_file 300\n"
    (tmp_path / limit).with_name("memory.stat").write_text(counters)
    assert memory_check.free_memory() == left
