"""A run directory of another format is refused, and its configuration must be complete."""

import json
import re
import shutil
from pathlib import Path
from typing import Any

import pytest
from refusals import refuses

from fedraa.api import resume, run
from fedraa.config.experiment import Experiment
from fedraa.replay.replay import replay
from fedraa.rundir.checkpoint import Damaged, Saver, load_latest, read_state
from fedraa.rundir.config_file import FORMAT, read_config
from fedraa.rundir.file_names import CONFIG
from fedraa.rundir.history import History


@pytest.fixture
def directory(sample_runs: Path, tmp_path: Path) -> Path:
    return shutil.copytree(sample_runs / "scaffold-stopped", tmp_path / "run")


def rewrite(directory: Path, **changes: object) -> None:
    """Change keys of config.json; None removes a key."""
    path = directory / CONFIG
    config = json.loads(path.read_text()) | changes
    path.write_text(json.dumps({key: value for key, value in config.items() if value is not None}))


def test_folder_of_runs_is_refused_with_the_name_of_a_run(directory: Path) -> None:
    for read_it in (History, replay, resume):
        with refuses("run", str(directory)):
            read_it(directory.parent)


def test_reading_changes_nothing_on_the_disk(directory: Path) -> None:
    before = (directory / CONFIG).read_bytes()
    assert History(directory).config["format"] == FORMAT
    assert "consistent so far" in replay(directory)
    assert "interrupted" in repr(History(directory))
    assert (directory / CONFIG).read_bytes() == before


def test_page_of_run_directories_has_the_current_format() -> None:
    page = Path(__file__).parents[3] / "docs" / "reference" / "run-directories.md"
    assert re.findall(r"version of the directory's format, now (\d+)", page.read_text()) == [str(FORMAT)]


@pytest.mark.parametrize("format", [FORMAT + 1, FORMAT - 1, "new", True, None])
def test_another_format_is_refused(format: object, directory: Path) -> None:
    rewrite(directory, format=format)
    for read_it in (lambda: History(directory).config, lambda: replay(directory), lambda: resume(directory)):
        with refuses("run", str(directory / CONFIG), "format"):
            read_it()


def test_format_is_checked_before_the_other_keys(directory: Path) -> None:
    rewrite(directory, format=FORMAT + 1, method=[])
    with refuses("run", str(FORMAT + 1)):
        read_config(directory / CONFIG)


@pytest.mark.parametrize(
    ("changes", "name"),
    [
        ({"colour": "red"}, "'colour'"),
        ({"method": []}, "'method'"),
        ({"resolved": None}, "'resolved'"),
        ({"experiment": {}}, "experiment.method"),
    ],
)
def test_configuration_with_missing_unknown_or_wrong_keys_is_refused(
    changes: dict[str, Any], name: str, directory: Path
) -> None:
    rewrite(directory, **changes)
    with refuses("run", str(directory / CONFIG), name):
        read_config(directory / CONFIG)


@pytest.mark.parametrize("text", ["[]", "{", "3"])
def test_configuration_that_is_no_json_object_is_refused(text: str, directory: Path) -> None:
    (directory / CONFIG).write_text(text)
    with refuses("run", str(directory / CONFIG)):
        read_config(directory / CONFIG)


def test_checkpoint_of_another_format_is_refused(tmp_path: Path) -> None:
    Saver().save(tmp_path / "new", 3, {"x": 1})
    assert read_state((tmp_path / "new" / "00000003.ckpt").read_bytes()) == {"format": FORMAT, "x": 1}
    assert load_latest(tmp_path / "new", lambda state: None) == {"x": 1}
    Saver().save(tmp_path / "newer", 3, {"x": 1, "format": FORMAT + 1})
    with refuses("run", "00000003.ckpt", str(FORMAT + 1)):
        load_latest(tmp_path / "newer", lambda state: None)
    with pytest.raises(Damaged):
        read_state(b"")


def test_config_names_the_format(tmp_path: Path) -> None:
    history = run(Experiment(method="fedavg", rounds=1, clients=3, engine="local", quiet=True, out=tmp_path / "run"))
    assert history.config["format"] == FORMAT


@pytest.mark.parametrize(
    ("method", "choice", "field"),
    [("prunefl", "submodel", "initial"), ("ra-fed", "submodel", "regions"), ("fed-quilt", "update", "spread")],
)
def test_resume_refuses_a_configuration_that_lacks_a_field_of_the_method(
    method: str, choice: str, field: str, tmp_path: Path
) -> None:
    flags: dict[str, Any] = {"clients": 4, "time": 0.2, "hidden": (8,), "engine": "local", "quiet": True}
    directory = run(Experiment(**flags, method=method, out=tmp_path / "run")).directory
    config = json.loads((directory / CONFIG).read_text())
    del config["method"][choice][field]
    (directory / CONFIG).write_text(json.dumps(config))
    with pytest.raises(ValueError, match=rf"{choice}\.{field}"):
        resume(directory, time=0.4)
