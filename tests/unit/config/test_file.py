"""Configuration files: the fields of an experiment as TOML, flags over them, and errors with the file and the field."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
from refusals import refuses

from fedraa import Experiment
from fedraa.cli.main import main

FILE = """
method = "fed-raa"
dataset = "mnist"
hidden = [16, 8]
ratios = [0.25, 0.75]
quiet = true
data_dir = "somewhere"
lr = 1
scheduler = "my_ext:LowestLoss(patience=3)"

[staleness]
kind = "my_ext:Slow"
exponent = 0.3
name = "a"

[override]
submodel.capacities.redraw = true

[override.local]
sam_rho = 0.05
compressor = {kind = "my_ext:Half", share = 0.5}
"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "my.toml").write_text(FILE)
    small = 'engine = "local"\nhidden = [8]\nclients = 4\nlocal_epochs = 1\nupdates = 4\nquiet = true\n'
    (tmp_path / "small.toml").write_text(small)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_from_file_reads_every_kind_of_value(folder: Path) -> None:
    assert Experiment.from_file("my.toml") == Experiment(
        method="fed-raa",
        dataset="mnist",
        hidden=(16, 8),
        ratios=(0.25, 0.75),
        override={
            "submodel.capacities.redraw": True,
            "local.sam_rho": 0.05,
            "local.compressor": "my_ext:Half(share=0.5)",
        },
        quiet=True,
        data_dir=Path("somewhere"),
        lr=1.0,
        scheduler="my_ext:LowestLoss(patience=3)",
        staleness="my_ext:Slow(exponent=0.3, name='a')",
    )


@pytest.mark.parametrize(
    ("text", "field", "value", "last"),
    [
        ("datset = 'digits'", "bad.toml: datset", None, ["dataset?"]),
        ("zzz = 1", "bad.toml: zzz", None, ["fields"]),
        ("clients = 0", "bad.toml: clients", 0, []),
        ("clients = 'many'", "bad.toml: clients", "many", []),
        ("quiet = 'very'", "bad.toml: quiet", "very", []),
        ("[staleness]\nexponent = 1", "bad.toml: staleness", {"exponent": 1}, []),
        ('out = "a\\u0000b"', "bad.toml: out", Path("a\0b"), ["path"]),
        ('links = "a\\u0000b.csv"', "bad.toml: links", Path("a\0b.csv"), ["path"]),
        ("clients = ", "config", Path("bad.toml"), ["file"]),
        pytest.param("clients = " + "[" * 100_000, "config", Path("bad.toml"), ["file"], id="nested"),
        ("ratios = [0.5, 0.6]", "bad.toml: ratios", (0.5, 0.6), []),
    ],
)
def test_error_in_a_file_names_the_file_and_the_field(
    text: str, field: str, value: object, last: list[str], folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (folder / "bad.toml").write_text(text)
    with refuses(field, "bad.toml", got=value) as refused:
        Experiment.from_file("bad.toml")
    assert refused.value.hint.split()[-1:] == last
    with refuses("config", got=Path("none.toml")):
        Experiment.from_file("none.toml")
    for command in (["run"], ["plan"], ["compare", "fed-raa"]):
        assert main([*command, "--config", "bad.toml"]) == 2
        out, err = capsys.readouterr()
        assert (out, err.count("\n"), err[:8]) == ("", 1, "fedraa: ")
    assert not (folder / "runs").exists()


def test_misspelled_component_in_a_file_is_refused_before_anything_is_written(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (folder / "bad.toml").write_text("scheduler = 'gre-ra'\nengine = 'local'")
    before = sorted(folder.iterdir())
    for command in (["run"], ["plan"], ["compare", "fed-raa"]):
        assert main([*command, "--config", "bad.toml"]) == 2
        out, err = capsys.readouterr()
        assert (out, err.count("\n")) == ("", 1)
        assert err.startswith("fedraa: scheduler: got 'gre-ra'; ")
        assert err.endswith("gre-raa?\n")
    assert sorted(folder.iterdir()) == before


def recorded_experiment(directory: Path) -> dict[str, object]:
    return dict(json.loads((directory / "config.json").read_text())["experiment"])


@pytest.mark.parametrize("given", [["--config", "small.toml"], ["--config=small.toml"]])
def test_flags_override_the_file(given: list[str], folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["run", "--hidden", "6", "5", *given, "--no-quiet", "--updates", "6", "--out", "run"]) == 0
    assert "6 (6 tasks)" in capsys.readouterr().out
    flags = recorded_experiment(folder / "run")
    assert (flags["hidden"], flags["quiet"], flags["updates"], flags["clients"]) == ([6, 5], False, 6, 4)


def test_plan_and_compare_read_a_configuration_file(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["plan", "--config", "small.toml"]) == 0
    assert "4 updates in time" in capsys.readouterr().out
    assert main(["compare", "--config", "small.toml", "fed-raa", "fedasync", "--out", "all"]) == 0
    assert recorded_experiment(folder / "all" / "fedasync-0")["updates"] == 4
    assert main(["compare", "--config", "small.toml"]) == 2
    assert "methods" in capsys.readouterr().err


def test_file_may_begin_with_a_byte_order_mark(folder: Path) -> None:
    (folder / "marked.toml").write_text("lr = 0.25\n", encoding="utf-8-sig")
    assert Experiment.from_file("marked.toml").lr == 0.25


def test_option_config_without_a_file_is_refused(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["run", "--config"]) == 2
    assert capsys.readouterr().err.startswith("fedraa: config: ")


def test_modules_in_the_working_directory_are_found(folder: Path) -> None:
    (folder / "my_net.py").write_text(
        "from torch import nn\n\n\ndef net():\n"
        "    return nn.Sequential(nn.Flatten(), nn.Linear(64, 9), nn.ReLU(), nn.Linear(9, 10))\n"
    )
    (folder / "own.toml").write_text('model = "my_net:net"\nengine = "local"\n')
    script = "import sys; sys.path.remove(''); from fedraa.cli.main import main; sys.exit(main(sys.argv[1:]))"
    command = [sys.executable, "-c", script, "plan", "--config", "own.toml"]
    done = subprocess.run(command, capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")
    assert "my_net:net: 685 parameters" in done.stdout  # 64*9 + 9 + 9*10 + 10 = 685
