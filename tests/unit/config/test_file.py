"""Configuration files: the fields of an experiment as TOML, flags over them, one sentence for a mistake."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from fedraa import Experiment
from fedraa.cli.main import main

FILE = """
method = "fed-raa"
dataset = "mnist"
hidden = [16, 8]
ratios = [0.25, 0.75]
redraw = true
quiet = true
data_dir = "somewhere"
lr = 1
scheduler = "my_ext:LowestLoss(patience=3)"

[staleness]
kind = "my_ext:Slow"
exponent = 0.3
name = "a"
"""


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "my.toml").write_text(FILE)
    small = 'engine = "local"\nhidden = [8]\nclients = 4\nlocal_epochs = 1\nupdates = 4\nquiet = true\n'
    (tmp_path / "small.toml").write_text(small)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_every_kind_of_value_is_read(here: Path) -> None:
    assert Experiment.from_file("my.toml") == Experiment(
        method="fed-raa",
        dataset="mnist",
        hidden=(16, 8),
        ratios=(0.25, 0.75),
        redraw=True,
        quiet=True,
        data_dir=Path("somewhere"),
        lr=1.0,
        scheduler="my_ext:LowestLoss(patience=3)",
        staleness="my_ext:Slow(exponent=0.3, name='a')",
    )


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("datset = 'digits'", r"^bad.toml: 'datset' is no field of an experiment; did you mean dataset\?$"),
        ("zzz = 1", r"^bad.toml: 'zzz' is no field of an experiment$"),
        ("clients = 0", r"^bad.toml: clients: got 0; input should be greater than or equal to 1$"),
        ("clients = 'many'", r"^bad.toml: clients: got 'many'; "),
        ("quiet = 'very'", r"^bad.toml: quiet: got 'very'; "),
        ("scheduler = 'gre-ra'", r"^bad.toml: scheduler: got 'gre-ra'; did you mean gre-raa\?"),
        ("[staleness]\nexponent = 1", r"^bad.toml: the table {'exponent': 1} has no 'kind', the name or import path"),
        ("clients = ", r"^config: bad.toml is not TOML: "),
        ("ratios = [0.5, 0.6]", r"^bad.toml: ratios: 0.5 0.6 sum to 1.1; they must sum to 1$"),
    ],
)
def test_a_mistake_is_one_sentence(text: str, said: str, here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (here / "bad.toml").write_text(text)
    with pytest.raises(ValueError, match=said):
        Experiment.from_file("bad.toml")
    with pytest.raises(ValueError, match=r"^config: none.toml cannot be read: No such file or directory$"):
        Experiment.from_file("none.toml")
    for command in (["run"], ["plan"], ["compare", "fed-raa"]):
        assert main([*command, "--config", "bad.toml"]) == 2
        out, err = capsys.readouterr()
        assert (out, err.count("\n"), err[:8]) == ("", 1, "fedraa: ")
    assert not (here / "runs").exists()


def written(directory: Path) -> dict[str, object]:
    return dict(json.loads((directory / "config.json").read_text())["experiment"])


@pytest.mark.parametrize("given", [["--config", "small.toml"], ["--config=small.toml"]])
def test_flags_go_over_the_file(given: list[str], here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["run", "--hidden", "6", "5", *given, "--no-quiet", "--updates", "6", "--out", "run"]) == 0
    assert "6 (6 tasks)" in capsys.readouterr().out
    flags = written(here / "run")
    assert (flags["hidden"], flags["quiet"], flags["updates"], flags["clients"]) == ([6, 5], False, 6, 4)


def test_plan_and_compare_take_it_too(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["plan", "--config", "small.toml"]) == 0
    assert "4 updates in time" in capsys.readouterr().out
    assert main(["compare", "--config", "small.toml", "fed-raa", "fedasync", "--out", "all"]) == 0
    assert written(here / "all" / "fedasync-0")["updates"] == 4
    assert main(["compare", "--config", "small.toml"]) == 2
    assert "methods" in capsys.readouterr().err


def test_a_file_that_names_none_is_an_error(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["run", "--config"]) == 2
    assert capsys.readouterr().err.startswith("fedraa: config: got no value")


def test_own_modules_are_found_beside_the_user(here: Path) -> None:
    (here / "my_net.py").write_text(
        "from torch import nn\n\n\ndef net():\n"
        "    return nn.Sequential(nn.Flatten(), nn.Linear(64, 9), nn.ReLU(), nn.Linear(9, 10))\n"
    )
    (here / "own.toml").write_text('model = "my_net:net"\nengine = "local"\n')
    script = "import sys; sys.path.remove(''); from fedraa.cli.main import main; sys.exit(main(sys.argv[1:]))"
    command = [sys.executable, "-c", script, "plan", "--config", "own.toml"]
    done = subprocess.run(command, capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")
    assert "my_net:net: 685 parameters" in done.stdout  # 64*9 + 9 + 9*10 + 10 = 685
