"""`fedraa doctor` names the versions, the machine, and each known fault with its remedy."""

import json
import math
import os
import sys
from importlib.metadata import version
from pathlib import Path

import pytest

from fedraa.cli import doctor
from fedraa.cli.doctor import GIGABYTE, diagnose
from fedraa.cli.main import main
from fedraa.config.processes import cluster_address
from fedraa.config.sections import ClusterOptions
from fedraa.engine import memory_check


@pytest.fixture(autouse=True)
def healthy(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Simulate a machine with all cores usable, 10 GB of memory, and 50 GB of space in every folder."""
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    monkeypatch.delenv("RAY_AUTH_TOKEN", raising=False)
    monkeypatch.setenv("RAY_AUTH_TOKEN_PATH", str(tmp_path / "token"))
    monkeypatch.setattr(doctor, "count_usable_cores", lambda: float(os.cpu_count() or 1))
    monkeypatch.setattr(doctor, "free_gigabytes", lambda folder: 50.0)
    monkeypatch.setattr(memory_check, "free_memory", lambda: 10 * GIGABYTE)


def test_json_has_versions_and_no_fault_on_a_healthy_machine(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["doctor", "--json"]) == 0
    diagnosis = json.loads(capsys.readouterr().out)
    assert diagnosis["versions"]["ray"] == version("ray")
    assert diagnosis["machine"]["free memory"] == "10.0 GB"
    assert diagnosis["cluster"] is None
    assert diagnosis["findings"] == []


def test_table_has_versions_and_findings_in_24_lines(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["doctor"]) == 0
    out = capsys.readouterr().out
    assert f"torch {version('torch')}" in out
    assert "No known fault applies." in out
    assert len(out.splitlines()) <= 24


def test_missing_package_has_no_version(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor, "PACKAGES", ("numpy", "no-such-package"))
    versions = diagnose(None).versions
    assert versions["numpy"] == version("numpy")
    assert versions["no-such-package"] is None


@pytest.mark.parametrize(
    ("shared", "is_fault"),
    # Ray's object store takes 3 of 10 GB.
    [(2.9, True), (3.1, False)],
)
def test_small_shared_memory_is_a_fault(monkeypatch: pytest.MonkeyPatch, shared: float, is_fault: bool) -> None:
    monkeypatch.setattr(doctor, "free_gigabytes", lambda folder: shared)
    findings = diagnose(None).findings
    assert [finding.remedy for finding in findings] == ["start the container with --shm-size=3g"] * is_fault


@pytest.mark.parametrize(("platform", "faults"), [("linux", 1), ("darwin", 0)])
def test_missing_shared_memory_is_a_fault_on_linux(monkeypatch: pytest.MonkeyPatch, platform: str, faults: int) -> None:
    monkeypatch.setattr(sys, "platform", platform)
    monkeypatch.setattr(doctor, "free_gigabytes", lambda folder: None if folder == doctor.SHARED_MEMORY else 50.0)
    findings = diagnose(None).findings
    assert ["--engine local" in finding.remedy for finding in findings] == [True] * faults


def test_unknown_memory_is_no_fault(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(memory_check, "free_memory", lambda: math.inf)
    diagnosis = diagnose(None)
    assert diagnosis.findings == []
    assert diagnosis.machine["free memory"] == "unknown on this system"


def test_folder_that_cannot_be_written_is_a_fault(monkeypatch: pytest.MonkeyPatch) -> None:
    # The superuser may write into every folder that the file system allows, so the answer is replaced.
    monkeypatch.setattr(os, "access", lambda path, mode: (Path(path), mode) != (Path.cwd(), os.W_OK))
    (finding,) = diagnose(None).findings
    assert "--out" in finding.remedy


def test_full_disk_is_a_fault(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor, "free_gigabytes", lambda folder: 50.0 if folder == doctor.SHARED_MEMORY else 0.5)
    (finding,) = diagnose(None).findings
    assert "0.5 GB" in finding.problem


def test_fewer_usable_cores_are_a_fault_with_the_number_of_workers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "cpu_count", lambda: 8)
    monkeypatch.setattr(doctor, "count_usable_cores", lambda: 2.5)
    (finding,) = diagnose(None).findings
    assert "--workers 2" in finding.remedy


@pytest.mark.parametrize(("quota", "cores"), [("150000 100000", 1.5), ("max 100000", 4.0), ("900000 100000", 4.0)])
def test_usable_cores_are_bounded_by_the_quota(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, quota: str, cores: float
) -> None:
    monkeypatch.undo()
    (tmp_path / "cpu.max").write_text(f"{quota}\n")
    monkeypatch.setattr(doctor, "CPU_QUOTA", tmp_path / "cpu.max")
    monkeypatch.setattr(os, "sched_getaffinity", lambda process: {0, 1, 2, 3}, raising=False)
    assert doctor.count_usable_cores() == cores


def test_gradients_that_differ_between_memory_formats_are_a_fault(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor, "GRADIENT_TOLERANCE", -1.0)
    (finding,) = diagnose(None).findings
    assert "memory format" in finding.problem


def test_torchvision_that_cannot_be_imported_is_a_fault(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "torchvision", None)
    (finding,) = diagnose(None).findings
    assert "torchvision" in finding.problem


@pytest.mark.parametrize("by_environment", [False, True])
def test_cluster_that_does_not_answer_is_a_fault(monkeypatch: pytest.MonkeyPatch, by_environment: bool) -> None:
    address = "127.0.0.1:1"
    if by_environment:
        monkeypatch.setenv("RAY_ADDRESS", address)
    diagnosis = diagnose(None if by_environment else address)
    assert diagnosis.cluster == f"{address} does not answer"
    assert [address in finding.problem for finding in diagnosis.findings] == [True]


@pytest.mark.parametrize(
    "address", ["%$", "127.0.0.1", "127.0.0.1:port", "127.0.0.1:65536", ":6379", "ray://", "http://127.0.0.1:8265"]
)
def test_malformed_address_is_a_fault(monkeypatch: pytest.MonkeyPatch, address: str) -> None:
    monkeypatch.setenv("RAY_ADDRESS", address)
    (finding,) = diagnose(None).findings
    assert "HOST:PORT" in finding.problem


def test_empty_variable_for_the_address_names_no_cluster(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RAY_ADDRESS", "")
    assert diagnose(None).cluster is None
    assert cluster_address(ClusterOptions(engine="ray")) is None


@pytest.mark.parametrize(("mode", "is_fault"), [(0o644, True), (0o600, False)])
def test_token_that_other_users_can_read_is_a_fault(tmp_path: Path, mode: int, is_fault: bool) -> None:
    token = tmp_path / "token"
    token.write_text("0" * 64)
    token.chmod(mode)
    remedies = [finding.remedy for finding in diagnose("127.0.0.1:1").findings]
    assert (f"run: chmod 600 {token}" in remedies) == is_fault


def test_unknown_option_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["doctor", "--adress", "x"]) == 2
    assert "address" in capsys.readouterr().err
