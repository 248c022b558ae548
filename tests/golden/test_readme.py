"""Tests of the README: its commands work in their order, its links and flags exist."""

import re
from pathlib import Path

import matplotlib.image
import pytest
import tyro
from documented import ROOT, blocks, run_blocks

from benchmarks.__main__ import COMMANDS
from fedraa.cli.main import COMMANDS as COMMANDS_OF_FEDRAA
from fedraa.cli.main import main

pytestmark = [pytest.mark.cluster, pytest.mark.usefixtures("cluster")]

README = (ROOT / "README.md").read_text()
BLOCKS = blocks(README)


def test_every_block_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    # The tests of `fedraa check` need two other processes. Here one is enough.
    monkeypatch.setattr("fedraa.testing.other_process.ORDERS", ("1",))
    assert run_blocks(README, "README.md", tmp_path) >= 8
    assert "consistent" in capsys.readouterr().out
    assert (tmp_path / "runs" / "compare" / "compare.png").is_file()


def test_readme_has_at_most_150_lines() -> None:
    assert len(README.splitlines()) <= 150


def test_custom_model_takes_fewer_than_fifteen_lines() -> None:
    (block,) = [text for language, text in BLOCKS if "fedraa.run(" in text]
    assert len(block.strip().split("\n")) < 15


def test_linked_files_exist() -> None:
    links = re.findall(r"\]\(([^)#]+)\)", README)
    assert links
    assert all((ROOT / link).is_file() for link in links)


def test_named_flags_exist(capsys: pytest.CaptureFixture[str]) -> None:
    helps = ""
    for command in COMMANDS_OF_FEDRAA:
        with pytest.raises(SystemExit):
            main([command, "--help-all"])
        helps += capsys.readouterr().out
    with pytest.raises(SystemExit):
        tyro.extras.subcommand_cli_from_dict(COMMANDS, args=["run", "--help"])
    helps += capsys.readouterr().out
    flags = set(re.findall(r"(?<![\w-])--[a-z-]+", README)) - {"--help", "--help-all"}
    assert len(flags) >= 10
    assert {flag for flag in flags if flag not in helps} == set()


def test_picture_of_comparison_is_small() -> None:
    picture = ROOT / "benchmarks" / "results" / "compare.png"
    height, width, _ = matplotlib.image.imread(picture).shape
    assert width > 600
    assert height > 300
    assert picture.stat().st_size < 200_000
