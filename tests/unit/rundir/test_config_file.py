"""Directories of older formats are read and replayed, but not resumed; those of newer formats are refused."""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from refusals import refuses

from fedraa.api import resume, run
from fedraa.config.experiment import Experiment
from fedraa.replay.replay import replay
from fedraa.report import report
from fedraa.rundir.checkpoint import Damaged, load_latest, read, save
from fedraa.rundir.config_file import FORMAT, read_config, upgrade_config
from fedraa.rundir.file_names import CONFIG
from fedraa.rundir.history import History

RUNS = Path(__file__).parents[2] / "fixtures" / "runs"  # of format 1, two of them killed before their end


@pytest.fixture
def old(tmp_path: Path) -> Any:
    return lambda name: Path(shutil.copytree(RUNS / name, tmp_path / name))


def rewrite(directory: Path, **changes: object) -> None:
    path = directory / CONFIG
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))


def test_old_names_are_read_as_those_of_today() -> None:
    update = read_config(RUNS / "scaffold-stopped" / CONFIG)["method"]["update"]
    assert update == {
        "kind": "Mean",
        "weights": "uniform",
        "aggregator": {"kind": "Covered"},
        "optimizer": {"kind": "Sgd", "server_lr": 1.0},
        "auxiliary": {"kind": "ControlVariates"},
        "owned_head": False,
    }


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("none", "NoAuxiliary"),
        ("control", "ControlVariates"),
        ("momentum", "GlobalMomentum"),
        ("frozen-momentum", "FrozenMomentum"),
        ("adversary", "Adversaries"),
    ],
)
def test_every_kind_of_auxiliary_has_its_new_name(old: str, new: str) -> None:
    upgraded = upgrade_config({"method": {"update": {"kind": "Mean", "carry": {"kind": old}}}})
    assert upgraded == {"method": {"update": {"kind": "Mean", "auxiliary": {"kind": new}}}}
    assert upgrade_config(upgraded) == upgraded


@pytest.mark.parametrize(("format", "steps"), [(1, "auto:20"), (3, "auto:20"), (4, "auto")])
def test_auto_was_twenty_steps_before_it_ended_with_a_pass(format: int, steps: str) -> None:
    config = {"format": format, "method": {"local": {"steps": "auto", "momentum": 0.5}}}
    assert upgrade_config(config)["method"]["local"] == {"steps": steps, "momentum": 0.5}
    told = {"format": format, "method": {"local": {"steps": "auto:5"}}}
    assert upgrade_config(told) == told


def test_reading_changes_nothing_on_the_disk(old: Any) -> None:
    directory = old("scaffold-stopped")
    before = (directory / CONFIG).read_bytes()
    assert History(directory).config["format"] == 1
    replay(directory)
    assert (directory / CONFIG).read_bytes() == before


def test_an_old_run_that_has_ended_is_replayed_and_reported(old: Any, tmp_path: Path) -> None:
    directory = old("fed-raa-ended")
    assert "consistent (" in replay(directory)
    report([directory], tmp_path / "page.html")
    assert "fed-raa" in (tmp_path / "page.html").read_text()
    assert repr(History(directory)) == (
        f"<History of {directory}: fed-raa on digits, ended by steps, step 24, accuracy 0.6278>"
    )


@pytest.mark.parametrize("name", ["scaffold-stopped", "fed-raa-stopped"])
def test_resume_of_an_old_format_is_refused(name: str, old: Any) -> None:
    directory = old(name)
    assert "consistent so far" in replay(directory)
    assert "interrupted" in repr(History(directory))
    with refuses("run", "format 1", str(FORMAT)):
        resume(directory)


@pytest.mark.parametrize(
    ("changes", "name"),
    [
        ({"format": FORMAT + 1}, str(FORMAT + 1)),
        ({"format": "new"}, "'new'"),
        ({"format": 0}, "got 0"),
        ({"format": FORMAT + 1, "method": []}, str(FORMAT + 1)),
        ({"colour": "red"}, "'colour'"),
    ],
)
def test_a_newer_format_is_refused(changes: dict[str, Any], name: str, old: Any) -> None:
    directory = old("fed-raa-ended")
    rewrite(directory, **changes)
    for read_it in (lambda: History(directory).config, lambda: replay(directory), lambda: resume(directory)):
        with refuses("run", str(directory / CONFIG), name):
            read_it()


def test_a_checkpoint_has_a_format(tmp_path: Path) -> None:
    save(tmp_path / "new", 3, {"x": 1})
    assert read((tmp_path / "new" / "00000003.ckpt").read_bytes()) == {"format": FORMAT, "x": 1}
    assert load_latest(tmp_path / "new", lambda state: None) == {"x": 1}
    save(tmp_path / "newer", 3, {"x": 1, "format": FORMAT + 1})
    with refuses("run", "00000003.ckpt", str(FORMAT + 1)):
        load_latest(tmp_path / "newer", lambda state: None)
    with pytest.raises(Damaged):
        read(b"")


def test_config_names_the_format(tmp_path: Path) -> None:
    history = run(Experiment(method="fedavg", rounds=1, clients=3, engine="local", quiet=True, out=tmp_path / "run"))
    assert history.config["format"] == FORMAT


@pytest.mark.parametrize(
    ("method", "choice", "field"),
    [
        ("prunefl", "submodel", "initial"),
        ("ist", "submodel", "scaled"),
        ("ra-fed", "submodel", "regions"),
        ("fed-quilt", "update", "spread"),
        ("fed-quilt", "local", "calibrate"),
    ],
)
def test_what_parts_were_before_is_told_apart(method: str, choice: str, field: str, tmp_path: Path) -> None:
    """Runs of this version, with the configuration of one that did not know the field, are not gone on with."""
    flags: dict[str, Any] = {"clients": 4, "time": 0.2, "hidden": (8,), "engine": "local", "quiet": True}
    directory = run(Experiment(**flags, method=method, out=tmp_path / "run")).directory
    config = json.loads((directory / CONFIG).read_text())
    del config["method"][choice][field]
    (directory / CONFIG).write_text(json.dumps(config))
    assert read_config(directory / CONFIG)["method"][choice][field] in (0, False, "the same units in every layer")
    with pytest.raises(ValueError, match=rf"{choice}\.{field}"):
        resume(directory, time=0.4)
