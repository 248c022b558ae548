"""Tuned values and recorded runs of a race, with which another race continues."""

import gzip
import json
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from refusals import refuses

from benchmarks.studies.commands import run_study
from benchmarks.studies.options import RunOptions
from benchmarks.studies.race.entrants import ENTRANTS, ROUNDS
from benchmarks.studies.race.measures import Measured, identifying_fields
from benchmarks.studies.race.page import read_race
from benchmarks.studies.race.record import read_record, write_record
from benchmarks.studies.race.runs import Race
from benchmarks.studies.race.settings import QUICK, SETTINGS
from fedraa.settings.resolve import resolve_method


@pytest.fixture
def recorded_race(tmp_path: Path) -> tuple[Race, Measured]:
    """Return a race in D with FedAvg's tuned values, and a recorded run with seed 0, as if from another machine."""
    setting = SETTINGS["D"]
    elsewhere = Race(
        setting, Path("/there/race"), Path("/there/data"), (0,), tuned_values={ROUNDS: {"local_steps": 20}}
    )
    cell = elsewhere.cell(ENTRANTS[ROUNDS], "tuned")
    assert cell is not None
    method = json.loads(json.dumps(resolve_method(cell.experiment).described()))
    spent = pd.DataFrame({"t": [0.0, 1 / 3], "accuracy": [0.1, 0.98], "bytes": [0.0, 12345.0], "flops": [0.0, 1e9]})
    run = Measured(ROUNDS, "tuned", 0, "abc", identifying_fields(cell.experiment), method, 0.9, spent, setting.targets)
    return replace(elsewhere, folder=tmp_path, data_dir=tmp_path / "data"), run


def test_record_is_read_as_it_was_written(recorded_race: tuple[Race, Measured], tmp_path: Path) -> None:
    race, run = recorded_race
    write_record(tmp_path / "record", [run])
    (read,) = read_record(tmp_path / "record", run.targets)
    assert read.times == pytest.approx(run.times)
    assert read.accuracy == 0.98
    assert (read.fields, read.method, read.worst, read.commit) == (run.fields, run.method, 0.9, "abc")
    assert "/there" not in json.dumps(read.fields)
    assert read.fields["compute"] == "fleets/balanced.csv"
    assert replace(race, recorded=[read]).measured() == [read]
    assert replace(race, recorded=[read], data_dir=None).outdated_runs() == []
    assert replace(race, recorded=[read], tuned_values={ROUNDS: {"local_steps": 47}}).outdated_runs() == [read]


@pytest.mark.parametrize(
    "change",
    [
        {"part": "untuned"},
        {"seed": 1},
        {"entrant": "ist"},
        {"fields": {"method": "fedavg"}},
        {"method": {"local": {"momentum": 0.123}}},
    ],
    ids=lambda change: str(*change),
)
def test_recorded_run_with_other_values_is_not_reused(
    change: dict[str, Any], recorded_race: tuple[Race, Measured]
) -> None:
    """A recorded run is repeated if its values differ, or if the defaults of its method have changed."""
    race, run = recorded_race
    assert replace(race, recorded=[replace(run, **change)]).measured() == []


def test_missing_or_malformed_record_is_refused(tmp_path: Path) -> None:
    (tmp_path / "race_digits.toml").write_text(Path("benchmarks/results/race_digits.toml").read_text())
    asked: dict[str, Any] = {"quick": True, "extend": tmp_path, "out": tmp_path / "out"}
    record = tmp_path / "race_digits.runs.jsonl.gz"
    with refuses(str(record), "No such file"):
        run_study("race", RunOptions(**asked))
    spent = {name: [0.5] for name in ("t", "accuracy", "bytes", "flops")}
    line = {"entrant": "ist", "part": "tuned", "seed": 0, "commit": "a", "experiment": {"lr": 1}, "method": {"a": 1}}
    line |= {"client_worst": 0.1, "evaluations": spent}
    bad = [line | {"entrant": "me"}, line | {"part": "x"}, line | {"seed": math.inf}, line | {"method": {}}]
    bad += [
        line | {"evaluations": spent | {"t": [math.nan]}},
        line | {"evaluations": {key: [] for key in spent}},
        [1],
        {},
    ]
    packed = [gzip.compress(json.dumps(row).encode()) for row in (*bad, line)]
    for content in (b"", b"text", packed.pop()[:-9], gzip.compress(b"\xff{\n")):
        record.write_bytes(content)
        with refuses(str(record)):
            run_study("race", RunOptions(**asked))
    for content in packed:
        record.write_bytes(content)
        with refuses(f"{record} line 1"):
            run_study("race", RunOptions(**asked))
    good = json.dumps(line)
    for text in (f"{good}\n{good}\n", f"{good}\n{good[:-1]}\n"):
        record.write_bytes(gzip.compress(text.encode()))
        with refuses(f"{record} line 2"):
            run_study("race", RunOptions(**asked))
    record.write_bytes(gzip.compress(good.encode()))
    (tmp_path / "race_digits.toml").unlink()
    with refuses("extend", got=tmp_path / "race_digits.toml"):
        run_study("race", RunOptions(**asked))
    with refuses("extend", "--tuned"):
        run_study("race", RunOptions(**asked | {"tuned": tmp_path / "race_digits.toml"}))
    with refuses("study", got="raa_beta"):
        run_study("raa_beta", RunOptions(quick=True, extend=tmp_path, out=tmp_path / "out"))
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("old", "new", "names"),
    [
        ("trials = 8", "trials = 30", ["trials", "30", "8"]),
        ('lr = "0.1:0.8:log"', 'lr = "0.1:2:log"', ["lr", "'0.1:2:log'", "'0.1:0.8:log'"]),
        ("digits, half", "digits, all", ["setting", "'digits, all", "'digits, half"]),
        ("server_lr", "momentum", ["fedavg", "lr local_steps momentum", "lr local_steps server_lr"]),
        ('methods."fedavg"', 'methods."fedprox"', ["fedprox"]),
    ],
)
def test_tuned_values_of_another_race_are_refused(tmp_path: Path, old: str, new: str, names: list[str]) -> None:
    file = tmp_path / "tuned.toml"
    text = Path("benchmarks/results/race_digits.toml").read_text()
    file.write_text(text.replace(old, new, 1) if "methods" not in old else text.replace(old, new))
    with refuses("tuned", str(file), *names):
        run_study("race", RunOptions(quick=True, tuned=file, out=tmp_path / "out"))
    with refuses("tuned", str(file), "--setting"):
        run_study("race", RunOptions(setting=("A", "B"), tuned=file, out=tmp_path / "out"))
    assert not (tmp_path / "out").exists()


def test_committed_tuned_values_of_races_can_be_read() -> None:
    for setting in (QUICK, *SETTINGS.values()):
        file = Path(f"benchmarks/results/race_{setting.name}.toml")
        if file.exists():
            assert ROUNDS in read_race(file, setting)
