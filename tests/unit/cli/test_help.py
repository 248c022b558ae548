"""`--help`: groups, defaults, texts; and what is said of a run before it trains."""

import re

import pytest

import fedraa
from fedraa.cli.flags import POSITIONAL, flags_of
from fedraa.cli.main import COMMANDS, main

GROUPS = [
    "Dataset, model and objective",
    "Clients and their data",
    "Devices",
    "Method: submodels, update rule and schedule",
    "Local training",
    "End of the run",
    "Evaluation",
    "Checkpoints and failing clients",
    "Seed, clock and device",
    "Engine, workers and Ray cluster",
    "Output",
]


def helped(command: str, capsys: pytest.CaptureFixture[str]) -> str:
    with pytest.raises(SystemExit) as ended:
        main([command, "--help"])
    assert ended.value.code == 0
    return capsys.readouterr().out


def test_flags_are_in_groups_with_their_defaults(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    shown = helped("run", capsys)
    places = [shown.index(f"\n{group}\n") for group in GROUPS]
    assert places == sorted(places)
    assert max(map(len, shown.splitlines())) <= 80
    plain = " ".join(shown.split())
    assert "--lr FLOAT Local learning rate. (default: 0.05)" in plain
    assert "--engine ray|local Worker processes on Ray, or only this process. (default: ray)" in plain
    assert re.search(r"--mixing FLOAT Weight of an update in the asynchronous mix\. --staleness", plain)
    assert shown.index("--lr ") > shown.index("\nLocal training\n") > shown.index("--compute ")


@pytest.mark.parametrize("name", list(COMMANDS))
def test_every_flag_has_a_text(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    shown = helped(name, capsys)
    for flag in flags_of(COMMANDS[name]):
        assert flag.text, flag.name
        assert flag.name in shown
    positional = [flag.name for flag in flags_of(COMMANDS[name]) if flag.group == POSITIONAL]
    assert f"usage: fedraa {' '.join([name, *positional])} [flags]" in shown


def test_help_of_a_command_that_is_sent_on_is_not_ours() -> None:
    assert [flag.typed for flag in flags_of(COMMANDS["check"])] == ["PART", "--as TEXT", "--ray, --no-ray"]


def test_what_is_done_before_training_is_told(tmp_path_factory: pytest.TempPathFactory) -> None:
    told: list[str | None] = []

    class Listens(fedraa.Callback):
        def on_prepare(self, doing: str | None) -> None:
            told.append(doing)

    flags = {"clients": 2, "hidden": (8,), "local_steps": 1, "updates": 2, "engine": "local"}
    fedraa.run(callbacks=[Listens()], out=tmp_path_factory.mktemp("told") / "run", **flags)
    *steps, last = told
    assert last is None
    for step, name in zip(steps, ("digits", "2 clients", "the model", "parameters", "run"), strict=True):
        assert name in str(step)
    told.clear()
    with pytest.raises(ValueError, match="2000"):
        fedraa.run(callbacks=[Listens()], engine="local", clients=2000)
    assert told[-1] is None
