"""Everything that the README tells the reader to type works, in the order in which it stands there."""

import re
import shlex
from pathlib import Path

import matplotlib.image
import pytest
import tyro

from benchmarks.__main__ import COMMANDS
from fedraa.cli.main import COMMANDS as COMMANDS_OF_FEDRAA
from fedraa.cli.main import _parse, main

pytestmark = [pytest.mark.cluster, pytest.mark.usefixtures("cluster")]

ROOT = Path(__file__).parents[2]
README = (ROOT / "README.md").read_text()
BLOCKS = re.findall(r"^```(\w+)\n(.*?)^```", README, flags=re.MULTILINE | re.DOTALL)
SHORTER = {"--seeds 0 1 2": "--seeds 0", "--time 8": "--time 1"}


def test_every_block_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.chdir(tmp_path)
    commands = 0
    monkeypatch.syspath_prepend(tmp_path)
    for language, text in BLOCKS:
        if named := re.match(r"# (\w+\.(py|toml))\n", text):  # a file of the reader's
            (tmp_path / named[1]).write_text(text)
        elif language == "python":
            exec(compile(text, "README.md", "exec"), {})
        else:
            assert language == "sh"
            for line in text.strip().split("\n"):
                run(line)
                commands += 1
    assert commands >= 10
    assert "consistent" in capsys.readouterr().out
    assert (tmp_path / "runs" / "compare" / "compare.png").is_file()


def run(line: str) -> None:
    """`fedraa` commands as they stand, but for fewer seeds and less time; of the long ones, that they are there."""
    for long, short in SHORTER.items():
        line = line.replace(long, short)
    program, *arguments = shlex.split(line, comments=True)
    if program == "make":
        assert f"\n{arguments[0]}:" in (ROOT / "Makefile").read_text()
    elif program in ("export", "chmod", "ray", "sbatch"):  # likewise
        assert all((ROOT / argument).is_file() for argument in arguments if argument.startswith("actors/"))
    elif program == "python":
        assert arguments[:2] == ["-m", "benchmarks"]
        assert arguments[2] in COMMANDS
    else:
        assert program == "fedraa"
        if "--address" in arguments:  # tests/cluster/test_real_cluster.py runs it, on a cluster
            assert _parse(arguments)
            return
        if arguments[0] == "resume" and len(arguments) == 2:  # as after a kill: one that has ended is at its end
            Path(arguments[1], "summary.json").unlink()
        assert main(arguments) == 0, line


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
