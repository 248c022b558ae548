"""A run directory with contradictory files is inconsistent, and the message names the file."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from refusals import refuses
from replaying import read, write

from fedraa.cli.main import main
from fedraa.errors import Inconsistent, InputError
from fedraa.replay.replay import replay


def spoil_accuracy(directory: Path) -> str:
    log = read(directory)
    line = next(line for line in log if line["kind"] == "eval" and line["step"] == 6)
    line["accuracy"] += 0.01
    write(directory, log)
    return rf"evals.csv line 4 accuracy: .*line {line['seq'] + 1}\b"


def spoil_sha(directory: Path) -> str:
    log = read(directory)
    log[-1]["model_sha256"] = "0" * 64
    write(directory, log)
    summary = json.loads((directory / "summary.json").read_text())
    (directory / "summary.json").write_text(json.dumps(summary | {"model_sha256": "0" * 64}))
    return r"model.pt model_sha256: got '[0-9a-f]{64}'.* 0000"


def spoil_model(directory: Path) -> str:
    state = torch.load(directory / "model.pt", weights_only=True)
    next(iter(state.values())).view(-1)[5] += 1e-3
    torch.save(state, directory / "model.pt")
    return "model.pt model_sha256: "


def spoil_summary(directory: Path) -> str:
    summary = json.loads((directory / "summary.json").read_text())
    (directory / "summary.json").write_text(json.dumps(summary | {"bytes_up": summary["bytes_up"] - 1}))
    return r"summary.json bytes_up: "


def spoil_reason(directory: Path) -> str:
    log = read(directory)
    log[-1]["reason"] = "time"
    write(directory, log)
    return rf"line {len(log)} \(end\) reason: got 'time'; expected 'steps'"


def spoil_evals(directory: Path) -> str:
    rows = (directory / "evals.csv").read_text().splitlines(keepends=True)
    (directory / "evals.csv").write_text("".join(rows[:-1]))
    return r"evals.csv: "


def spoil_text(directory: Path) -> str:
    with (directory / "events.jsonl").open("a") as stream:
        stream.write('{"seq": 9')
    return r"events.jsonl line \d+: .*JSON object"


def spoil_rules(directory: Path) -> str:
    config = json.loads((directory / "config.json").read_text())
    config["method"]["update"]["mixing"] = 0.7
    (directory / "config.json").write_text(json.dumps(config))
    return r"\(commit\) weight: got 0.6; expected 0.7"


def lose_model(directory: Path) -> str:
    (directory / "model.pt").unlink()
    return "model.pt: "


SPOILERS = (spoil_accuracy, spoil_sha, spoil_model, spoil_summary, spoil_reason, spoil_evals, spoil_text, spoil_rules)


@pytest.mark.parametrize("spoil", [*SPOILERS, lose_model])
def test_damaged_directory_is_inconsistent(spoil: Callable[[Path], str], copy: Callable[[str], Path]) -> None:
    directory = copy("fed-raa")
    message = spoil(directory)
    with pytest.raises(Inconsistent, match=message):
        replay(directory)


@pytest.mark.parametrize("name", ["events.jsonl", "evals.csv"])
def test_run_killed_while_it_wrote_a_line_is_consistent(name: str, copy: Callable[[str], Path]) -> None:
    directory = copy("fed-raa")
    (directory / "summary.json").unlink()
    log = directory / "events.jsonl"
    if name == "evals.csv":
        log.write_bytes(b"".join(log.read_bytes().splitlines(keepends=True)[:-1]))
    content = (directory / name).read_bytes()
    (directory / name).write_bytes(content[:-5])
    assert "consistent so far" in replay(directory)


@pytest.mark.parametrize(
    ("column", "values", "field"),
    [
        ("compute", [1.0, 0.0, 1.0, 1.0, 1.0], "compute: {} client 1 compute"),
        ("latency", [0.0, 0.0, -1.0, 0.0, 0.0], "compute: {} client 2 latency"),
        ("memory", [None], "run: {}: memory"),
        ("samples", [9, 9, 0, 9, 9], "run: {}: samples"),
    ],
)
def test_impossible_devices_are_refused(
    column: str, values: list[float | None], field: str, copy: Callable[[str], Path]
) -> None:
    directory = copy("fed-raa")
    config = json.loads((directory / "config.json").read_text())
    config["resolved"][column] = values
    (directory / "config.json").write_text(json.dumps(config))
    with refuses(field.format(directory / "config.json")):
        replay(directory)


def test_exit_code_is_0_if_consistent_1_if_not_and_2_without_a_run(
    genuine: Callable[[str], Path],
    copy: Callable[[str], Path],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert main(["replay", str(genuine("fed-raa"))]) == 0
    assert "consistent (" in capsys.readouterr().out
    spoiled = copy("fed-raa")
    spoil_reason(spoiled)
    assert main(["replay", str(spoiled)]) == 1
    assert "reason: got 'time'" in capsys.readouterr().err
    assert main(["replay", str(tmp_path / "nothing")]) == 2
    (spoiled / "config.json").write_text('{"experiment": {}}')
    assert main(["replay", str(spoiled)]) == 2
    assert capsys.readouterr().err.startswith("fedraa: run: ")


@pytest.mark.parametrize(
    ("method", "choice", "name", "value"),
    [
        ("fed-raa", "update", "mixing", None),
        ("fed-raa", "update", "mixing", "a"),
        ("fed-raa", "update", "mixing", [1]),
        ("fedavg", "local", "steps", 2.5),
        ("fedavg", "local", "batch_size", 0),
        ("fedavg", "local", "steps", "auto:5:x"),
        ("fedavg", "update", "optimizer", None),
        ("fedavg", "update", "auxiliary", None),
        ("fedavg", "schedule", "participation", 3),
    ],
)
def test_impossible_value_of_a_method_is_refused(
    method: str, choice: str, name: str, value: object, copy: Callable[[str], Path]
) -> None:
    directory = copy(method)
    config = json.loads((directory / "config.json").read_text())
    config["method"][choice][name] = value
    (directory / "config.json").write_text(json.dumps(config))
    with pytest.raises(InputError) as caught:
        replay(directory)
    assert caught.value.field.startswith(f"run: {directory / 'config.json'}")
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("part", "lost", "field"),
    [
        ("experiment", "method", "run"),
        ("method", "schedule", "run: {}: method.schedule"),
        ("method", "local", "run: {}: method.local"),
    ],
)
def test_missing_field_of_a_configuration_is_named(
    part: str, lost: str, field: str, copy: Callable[[str], Path]
) -> None:
    directory = copy("fedavg")
    config = json.loads((directory / "config.json").read_text())
    del config[part][lost]
    (directory / "config.json").write_text(json.dumps(config))
    with refuses(field.format(directory / "config.json"), f"{part}.{lost}", "config.json"):
        replay(directory)


@pytest.mark.parametrize(
    ("part", "name", "value", "field"),
    [
        ("resolved", "eval_every", 0, ": resolved.eval_every"),
        ("resolved", "samples", {}, ": resolved.samples"),
        ("resolved", "samples", [10**400] * 5, ""),
        ("experiment", "local_steps", "x", ": experiment: local_steps"),
        ("experiment", "clients", 0, ": experiment: clients"),
    ],
)
def test_damaged_value_is_refused_with_the_file(
    part: str, name: str, value: object, field: str, copy: Callable[[str], Path]
) -> None:
    directory = copy("fed-raa")
    config = json.loads((directory / "config.json").read_text())
    config[part][name] = value
    (directory / "config.json").write_text(json.dumps(config))
    with refuses(f"run: {directory / 'config.json'}{field}") as caught:
        replay(directory)
    assert "\n" not in str(caught.value)
