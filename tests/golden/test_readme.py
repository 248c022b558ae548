"""Everything that the README tells the reader to type works, in the order in which it stands there."""

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
    assert run_blocks(README, "README.md", tmp_path) >= 10
    assert "consistent" in capsys.readouterr().out
    assert (tmp_path / "runs" / "compare" / "compare.png").is_file()


def test_the_own_model_takes_fewer_than_fifteen_lines() -> None:
    (block,) = [text for language, text in BLOCKS if "fedraa.run(" in text]
    assert len(block.strip().split("\n")) < 15


def test_what_it_links_to_is_there() -> None:
    links = re.findall(r"\]\(([^)#]+)\)", README)
    assert links
    assert all((ROOT / link).is_file() for link in links)


def test_every_flag_that_it_names_exists(capsys: pytest.CaptureFixture[str]) -> None:
    helps = ""
    for command in COMMANDS_OF_FEDRAA:
        with pytest.raises(SystemExit):
            main([command, "--help"])
        helps += capsys.readouterr().out
    with pytest.raises(SystemExit):
        tyro.extras.subcommand_cli_from_dict(COMMANDS, args=["run", "--help"])
    helps += capsys.readouterr().out
    ours = re.sub(r"^ray .*$", "", README, flags=re.MULTILINE)  # Ray has flags of its own
    flags = set(re.findall(r"(?<![\w-])--[a-z-]+", ours)) - {"--help"}
    assert len(flags) > 20
    assert {flag for flag in flags if flag not in helps} == set()


def test_the_picture_is_small() -> None:
    picture = ROOT / "benchmarks" / "results" / "compare.png"
    height, width, _ = matplotlib.image.imread(picture).shape
    assert width > 600
    assert height > 300
    assert picture.stat().st_size < 200_000
