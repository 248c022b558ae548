"""The table of compatibility: the failures that its checks detect, its constraints, and the lines that it keeps."""

import sys
from contextlib import nullcontext
from pathlib import Path

import pytest
from refusals import refuses

from benchmarks.system import compat
from benchmarks.system.compat_checks import CHECKS, CheckFailed, Environment


@pytest.fixture
def environment(tmp_path: Path) -> Environment:
    return Environment(tmp_path, Path(sys.executable))


@pytest.fixture
def tried(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Replace the tests of combinations, so that all checks pass. Return the names of the tested combinations."""
    names: list[str] = []

    def try_quickly(name: str, combination: compat.Combination, folder: Path) -> compat.Row:
        names.append(name)
        return dict.fromkeys(compat.COLUMNS, "") | {"combination": name, "digest": "ab", "seconds": "1"}

    monkeypatch.setattr(compat, "try_combination", try_quickly)
    monkeypatch.setattr(compat.shutil, "which", lambda program: program)
    return names


def test_execute_returns_the_output_of_a_quiet_command(environment: Environment) -> None:
    assert environment.execute("-c", "print(3)") == "3\n"


@pytest.mark.parametrize(
    "code",
    [
        "import warnings; warnings.warn('old', FutureWarning)",
        "import warnings; warnings.warn('old', UserWarning)",
        "raise SystemExit(3)",
        "import os; os.kill(os.getpid(), 9)",
    ],
)
def test_execute_warning_or_exit_code_fails(environment: Environment, code: str) -> None:
    with pytest.raises(CheckFailed):
        environment.execute("-c", code)


def test_execute_expected_death_passes(environment: Environment) -> None:
    environment.execute("-c", "import os; os.kill(os.getpid(), 9)", exit_code=-9)


def test_constraints_leave_out_the_package_of_the_combination(tmp_path: Path) -> None:
    path = compat.write_constraints(compat.COMBINATIONS["ray-2.40.0"], tmp_path)
    pinned = {line for line in Path("constraints.txt").read_text().splitlines() if "==" in line}
    kept = {line for line in path.read_text().splitlines() if "==" in line}
    assert {line.partition("==")[0] for line in pinned - kept} == {"ray"}


def test_main_tries_missing_combinations_and_keeps_finished_lines(tmp_path: Path, tried: list[str]) -> None:
    out = tmp_path / "compat.csv"
    compat.main(("newest", "ray-2.48.0"), tmp_path, out)
    assert tried == ["newest", "ray-2.48.0"]
    assert list(compat.read_combinations(out)) == ["ray-2.48.0", "newest"]
    compat.main((), tmp_path, out)
    assert sorted(tried) == sorted(compat.COMBINATIONS)
    assert list(compat.read_combinations(out)) == list(compat.COMBINATIONS)


def test_main_unknown_combination_is_refused(tmp_path: Path, tried: list[str]) -> None:
    with refuses("only", got="ray-1"):
        compat.main(("ray-1",), tmp_path, tmp_path / "compat.csv")
    assert tried == []


def test_main_without_uv_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "")
    with refuses("uv"):
        compat.main((), tmp_path, tmp_path / "compat.csv")


def test_run_checks_other_digest_is_a_failure(monkeypatch: pytest.MonkeyPatch, environment: Environment) -> None:
    digests = {"local": "ab", "cluster": "cd", "resume": "ab"}
    checks = {name: (lambda environment, digest=digest: digest) for name, digest in digests.items()}
    monkeypatch.setattr(compat, "ALONE", checks)
    monkeypatch.setattr(compat, "ON_HEAD", {})
    monkeypatch.setattr(compat, "start_head", lambda environment: nullcontext())
    row = dict.fromkeys(compat.COLUMNS, "") | dict.fromkeys(CHECKS, compat.NO)
    row["flower"] = compat.DOES_NOT_APPLY
    compat.run_checks(environment, row)
    assert row["digest"] == "ab"
    assert {name for name in CHECKS if row[name] == compat.YES} == {"local", "resume"}
    assert "cd" in row["problem"]
