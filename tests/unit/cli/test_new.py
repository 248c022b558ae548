"""`fedraa new` writes a study whose commands all succeed."""

import errno
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

import fedraa
from fedraa.cli.main import main

SMALL = " --engine local --hidden 8 --local-steps 1 --quiet"
LESS = {"run": SMALL + " --updates 10", "compare": SMALL + " --time 0.1"}


@pytest.mark.slow
def test_every_command_in_the_readme_of_a_new_study_succeeds(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["new", str(tmp_path / "my-study")]) == 0
    assert capsys.readouterr().out.endswith(
        "README.md, parts.py, study.toml, test_parts.py; read its README.md first\n"
    )
    readme = (tmp_path / "my-study" / "README.md").read_text()
    assert readme.startswith("# my-study\n")
    commands = re.findall(r"^(fedraa|python) (.*?)\s+#", readme, re.MULTILINE)
    assert len(commands) == 6
    environment = os.environ | {"PYTHONPATH": str(Path(fedraa.__file__).parents[1]), "OMP_NUM_THREADS": "1"}
    for program, words in commands:
        less = LESS.get(words.partition(" ")[0], "")
        start = [sys.executable] if program == "python" else [sys.executable, "-m", "fedraa"]
        done = subprocess.run(
            start + (words + less).split(),
            cwd=tmp_path / "my-study",
            env=environment,
            capture_output=True,
            text=True,
            timeout=300,
        )
        assert done.returncode == 0, (words, done.stdout, done.stderr)


def test_existing_folder_is_refused_and_unchanged(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "mine").write_text("mine")
    for folder in (tmp_path, tmp_path / "mine"):
        assert main(["new", str(folder)]) == 2
        assert capsys.readouterr().err.startswith(f"fedraa: folder: got '{folder}'; ")
    assert main(["new", str(tmp_path / "mine" / "deeper")]) == 2
    assert capsys.readouterr().err.count("\n") == 1
    assert (tmp_path / "mine").read_text() == "mine"


def test_new_study_on_a_full_disk_leaves_no_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    synced: list[int] = []

    def fill_disk(descriptor: int) -> None:
        synced.append(descriptor)
        # A written file is synced twice: its content, and its entry in the folder.
        if len(synced) == 3:
            raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", fill_disk)
        assert main(["new", str(tmp_path / "study")]) == 2
    assert capsys.readouterr().err.startswith(f"fedraa: {tmp_path / 'study' / 'parts.py'}: ")
    assert [*tmp_path.iterdir()] == []
    assert main(["new", str(tmp_path / "study")]) == 0
