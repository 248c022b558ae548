"""A comparison that was interrupted continues with the same call, and does not repeat the runs that have ended."""

import os
import shutil
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from equal_runs import SMALL
from refusals import refuses
from torch import nn

import fedraa as fl
from fedraa.errors import InputError

FIELDS: dict[str, Any] = {name: value for name, value in SMALL.items() if name != "seed"} | {"updates": 12, "rounds": 6}
METHODS, SEEDS = ["fed-raa", "fedavg"], (0, 1)


class Stopped(Exception):
    """An exception that ends a comparison."""


class StopIn(fl.Callback):
    """A callback that stops the run with this directory name after an evaluation at step 3."""

    def __init__(self, name: str) -> None:
        self.name, self.here = name, False

    def on_start(self, event: Any) -> None:
        self.here = event.directory.name == self.name

    def on_eval(self, step: int, t: float, metrics: Any) -> None:
        if self.here and step == 3:
            raise Stopped


def compare(folder: Path, **more: Any) -> pd.DataFrame:
    return fl.compare(METHODS, SEEDS, **FIELDS | {"eval_every": 1, "out": folder} | more)


def rows(folder: Path) -> pd.DataFrame:
    """Return compare.csv without the real seconds, which differ between equal runs."""
    return pd.read_csv(folder / "compare.csv").drop(columns="wall")


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("whole") / "runs"
    compare(folder)
    return folder


@pytest.fixture
def half(tmp_path: Path) -> Path:
    """A comparison that was stopped in the third of four runs."""
    folder = tmp_path / "half"
    with pytest.raises(Stopped):
        compare(folder, callbacks=[StopIn("fedavg-0")])
    return folder


def test_continued_comparison_equals_an_uninterrupted_one(whole: Path, half: Path) -> None:
    ended = [*half.glob("*/summary.json")]
    assert sorted(path.parent.name for path in ended) == ["fed-raa-0", "fed-raa-1"]
    times = [path.stat().st_mtime_ns for path in ended]
    # A process that was killed at the start of a run leaves such files.
    (half / "fedavg-1").mkdir()
    (half / "fedavg-1" / "events.jsonl").touch()
    starts: list[tuple[str, bool]] = []

    class Starts(fl.Callback):
        def on_start(self, event: Any) -> None:
            starts.append((event.directory.name, event.resumed))

    table = compare(half, callbacks=[Starts()])
    assert starts == [("fedavg-0", True), ("fedavg-1", False)]
    assert [path.stat().st_mtime_ns for path in ended] == times
    pd.testing.assert_frame_equal(rows(half), rows(whole))
    assert list(table["directory"]) == [str(half / f"{method}-{seed}") for method in METHODS for seed in SEEDS]
    assert (half / "compare.png").is_file()
    for directory in table["directory"]:
        assert "consistent" in fl.replay(directory)


def test_ended_comparison_is_read_and_can_have_more_seeds(whole: Path, tmp_path: Path) -> None:
    folder = tmp_path / "runs"
    shutil.copytree(whole, folder)
    compare(folder)
    pd.testing.assert_frame_equal(rows(folder), rows(whole))
    more = fl.compare(METHODS, (0, 1, 2), **FIELDS, eval_every=1, out=folder)
    assert len(more) == 6
    assert set(rows(whole)["model_sha256"]) < set(more["model_sha256"])


@pytest.mark.parametrize(
    ("more", "names"),
    [
        ({"lr": 0.2}, ["lr 0.2"]),
        ({"updates": 13}, ["limits"]),
        ({"hidden": (9,)}, ["hidden"]),
    ],
    ids=str,
)
def test_comparison_with_other_settings_is_refused(more: dict[str, Any], names: list[str], half: Path) -> None:
    before = sorted(half.rglob("*"))
    with pytest.raises(InputError) as caught:
        compare(half, **more)
    assert [name for name in names if name not in str(caught.value)] == []
    assert sorted(half.rglob("*")) == before


@pytest.mark.parametrize("damage", ["accuracy in summary.json", "rows of evals.csv", "no config.json"])
def test_ended_run_with_changed_files_is_refused_before_other_runs(damage: str, half: Path) -> None:
    run = half / "fed-raa-1"
    if damage == "no config.json":
        (run / "config.json").unlink()
    elif damage == "rows of evals.csv":
        (run / "evals.csv").write_text("")
    else:
        shutil.copy(half / "fed-raa-0" / "summary.json", run)
    before = {path: path.stat().st_mtime_ns for path in half.rglob("*")}
    with pytest.raises(InputError) as caught:
        compare(half)
    assert str(run) in str(caught.value)
    assert {path: path.stat().st_mtime_ns for path in half.rglob("*")} == before


@pytest.mark.parametrize("name", ["compare.csv", "differences.csv", "compare.png"])
def test_pipe_with_the_name_of_a_result_is_replaced(name: str, whole: Path, tmp_path: Path) -> None:
    folder = tmp_path / "runs"
    shutil.copytree(whole, folder)
    (folder / name).unlink()
    # Opening this pipe would wait forever.
    os.mkfifo(folder / name)
    compare(folder)
    assert (folder / name).is_file()
    pd.testing.assert_frame_equal(rows(folder), rows(whole))


def test_comparison_with_another_model_is_refused(tmp_path: Path) -> None:
    fields = {name: value for name, value in FIELDS.items() if name not in ("hidden", "updates")} | {
        "out": tmp_path / "a"
    }
    model = nn.Sequential(nn.Flatten(), nn.Linear(64, 10))
    fl.compare(["fedavg"], model=model, **fields)
    fl.compare(["fedavg"], model=model, **fields)
    other = nn.Sequential(nn.Flatten(), nn.Linear(64, 10))
    with refuses("run", "another model", got=tmp_path / "a" / "fedavg-0"):
        fl.compare(["fedavg"], model=other, **fields)


def test_folder_with_other_files_or_runs_is_refused(half: Path) -> None:
    with refuses("out", "fed-raa-1"):
        fl.compare(METHODS, (0,), **FIELDS, eval_every=1, out=half)
    (half / "notes.txt").touch()
    with refuses("out", "notes.txt"):
        compare(half)
