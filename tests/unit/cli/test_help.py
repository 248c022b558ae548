"""`--help` and `--help-all`: groups, defaults and texts. Callbacks receive the steps before training."""

import re

import pytest

import fedraa
from fedraa.cli.flags import OWN, POSITIONAL, list_flags
from fedraa.cli.help import EVERYDAY, FURTHER, usage_of
from fedraa.cli.main import COMMAND_GROUPS, COMMANDS, main

# The sections with options that are not everyday options.
SECTIONS = [
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
WITH_EXPERIMENT = ["run", "compare", "tune", "plan"]


def help_of(words: str, capsys: pytest.CaptureFixture[str]) -> str:
    with pytest.raises(SystemExit) as ended:
        main(words.split())
    assert ended.value.code == 0
    return capsys.readouterr().out


def test_overview_has_one_line_per_command_in_40_lines(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("COLUMNS", "100")
    assert main(["--help"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) <= 40
    assert max(map(len, lines)) <= 100
    places = [lines.index(heading) for heading in COMMAND_GROUPS]
    assert places == sorted(places)
    for name, command in COMMANDS.items():
        (line,) = (line for line in lines if line.startswith(f"  {name} "))
        assert " ".join(line.split()) == f"{name} {command.__doc__}"


@pytest.mark.parametrize("name", WITH_EXPERIMENT)
def test_help_shows_everyday_options_in_70_lines(
    name: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.delenv("COLUMNS", raising=False)
    lines = help_of(f"{name} --help", capsys).splitlines()
    assert len(lines) <= 70
    assert max(map(len, lines)) <= 100
    assert lines[-1] == f"`fedraa {name} --help-all` lists all options."
    places = [lines.index(heading) for heading in EVERYDAY]
    assert places == sorted(places)
    shown = re.findall(r"^  (--[\w-]+)", "\n".join(lines), re.MULTILINE)
    own = [flag.option for flag in list_flags(COMMANDS[name]) if flag.group == OWN]
    everyday = [option for options in EVERYDAY.values() for option in options]
    assert 20 <= len(everyday) <= 25
    assert shown == [option for option in everyday if option in shown] + own
    assert set(everyday) - set(shown) <= {"--method"}


@pytest.mark.parametrize("name", WITH_EXPERIMENT)
def test_help_all_shows_everyday_options_then_every_other_one_by_section(
    name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    everyday, _, further = help_of(f"{name} --help-all", capsys).partition(f"\n{FURTHER}\n")
    assert everyday.strip() == help_of(f"{name} --help", capsys).rpartition("\n\n")[0].strip()
    places = [further.index(f"\n{section}\n") for section in SECTIONS]
    assert places == sorted(places)
    shown = re.findall(r"^  (--[\w-]+)", everyday + further, re.MULTILINE)
    assert sorted(shown) == sorted(flag.option for flag in list_flags(COMMANDS[name]) if flag.group != POSITIONAL)


def test_help_after_submit_shows_the_submitted_command(capsys: pytest.CaptureFixture[str]) -> None:
    assert help_of("submit -- plan --help", capsys) == help_of("plan --help", capsys)
    assert "fedraa submit COMMAND" in help_of("submit --help -- plan", capsys)


def test_help_has_values_defaults_and_the_width_of_the_terminal(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    shown = help_of("run --help-all", capsys)
    assert max(map(len, shown.splitlines())) <= 80
    plain = " ".join(shown.split())
    assert "--lr FLOAT Local learning rate (default: 0.05; fed-quilt starts at 0.2)." in plain
    assert re.search(r"--engine ray\|local [^-]+\(default: ray\)\. --workers", plain)


def test_help_omits_the_method_if_the_command_sets_it(capsys: pytest.CaptureFixture[str]) -> None:
    for name in ("compare", "tune"):
        assert "--method " not in help_of(f"{name} --help-all", capsys)


@pytest.mark.parametrize("name", list(COMMANDS))
def test_every_flag_has_one_sentence_with_its_default(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    shown = help_of(f"{name} --help-all", capsys)
    for flag in list_flags(COMMANDS[name]):
        assert flag.name in shown
        assert flag.text.endswith(".")
        assert not re.search(r"[.?!] [A-Z]", flag.text), flag.text
        if flag.group != POSITIONAL:
            assert bool(flag.default) != bool(re.search(r"\((?:default: .+|required)\)\.$", flag.text)), flag.name
    positional = [flag.name for flag in list_flags(COMMANDS[name]) if flag.group == POSITIONAL]
    usage = shown.splitlines()[0].split()
    assert [word.strip("[]") for word in usage[:3]] == ["usage:", "fedraa", name]
    assert [word.strip("[]") for word in usage[3:] if word != "[options]"] == positional


@pytest.mark.parametrize(
    ("name", "usage"),
    [
        ("run", "fedraa run [options]"),
        ("replay", "fedraa replay RUN"),
        ("methods", "fedraa methods [NAMES] [options]"),
        ("board", "fedraa board [FOLDER] [options]"),
    ],
)
def test_usage_has_brackets_around_optional_words(name: str, usage: str) -> None:
    assert usage_of(name, list_flags(COMMANDS[name])) == usage


def test_check_command_takes_a_component_and_two_options() -> None:
    assert [flag.typed for flag in list_flags(COMMANDS["check"])] == ["COMPONENT", "--as TEXT", "--ray, --no-ray"]


def test_callbacks_receive_each_step_before_training(tmp_path_factory: pytest.TempPathFactory) -> None:
    steps_seen: list[str | None] = []

    class Listens(fedraa.Callback):
        def on_prepare(self, doing: str | None) -> None:
            steps_seen.append(doing)

    flags = {"clients": 2, "hidden": (8,), "local_steps": 1, "updates": 2, "engine": "local"}
    fedraa.run(callbacks=[Listens()], out=tmp_path_factory.mktemp("steps_seen") / "run", **flags)
    *steps, last = steps_seen
    assert last is None
    for step, name in zip(steps, ("digits", "2 clients", "the model", "buffers", "run"), strict=True):
        assert name in str(step)
    steps_seen.clear()
    with pytest.raises(ValueError, match="2000"):
        fedraa.run(callbacks=[Listens()], engine="local", clients=2000)
    assert steps_seen[-1] is None
