"""The commit in a run's description is the commit of fedraa's sources, not of another repository around them."""

import subprocess
from pathlib import Path

import pytest

from fedraa.engine import run_description


@pytest.mark.parametrize(("package", "is_checkout"), [("fedraa", True), (".venv/lib/fedraa", False)])
def test_source_commit_is_recorded_only_for_a_checkout_of_fedraa(
    package: str, is_checkout: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / package / "engine"
    folder.mkdir(parents=True)
    git = ["git", "-C", str(tmp_path), "-c", "user.name=-", "-c", "user.email=-"]
    subprocess.run([*git, "init", "--quiet"], check=True)
    subprocess.run([*git, "commit", "--quiet", "--allow-empty", "--message=-"], check=True)
    head = (tmp_path / ".git" / "HEAD").read_text().removeprefix("ref: ").strip()
    commit = (tmp_path / ".git" / head).read_text().strip()
    monkeypatch.setattr(run_description, "__file__", str(folder / "run_description.py"))
    assert run_description.source_commit.__wrapped__() == (commit if is_checkout else None)
