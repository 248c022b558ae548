"""Assertions that runs are equal, apart from real times."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

import fedraa as fl
from benchmarks.system.killing import KillAt, Killed

# The fields of a short run with several checkpoints.
SMALL: dict[str, Any] = {
    "engine": "local",
    "hidden": (8,),
    "clients": 8,
    "local_steps": 2,
    "checkpoint_every": 2,
    "seed": 5,
    "quiet": True,
}


def lines(directory: Path) -> list[dict[str, Any]]:
    """Return the log of a run without real times."""
    return [{key: value for key, value in line.items() if key != "wall"} for line in fl.History(directory).lines()]


def same_run(directory: Path, undisturbed: Path) -> None:
    """Assert equal logs, evaluations and summaries, and equal bits of the models."""
    assert lines(directory) == lines(undisturbed)
    ours, theirs = fl.History(directory), fl.History(undisturbed)
    assert ours.evals.drop(columns="wall").equals(theirs.evals.drop(columns="wall"))
    assert ours.summary | {"wall": 0} == theirs.summary | {"wall": 0}
    assert (directory / "model.pt").read_bytes() == (undisturbed / "model.pt").read_bytes()


def check_resume(fields: Mapping[str, Any], folder: Path, kill_at: int, **objects: Any) -> fl.History:
    """Assert that a run that is killed and resumed equals an undisturbed run, and that it can be replayed.

    Args:
        fields: The arguments of `fedraa.run`.
        folder: The folder for the undisturbed run `whole` and the run `killed`.
        kill_at: The number of commits after which the run is killed.
        objects: The custom objects that `fedraa.resume` needs again.

    Returns:
        The undisturbed run.
    """
    whole = fl.run(**fields, out=folder / "whole")
    with pytest.raises(Killed):
        fl.run(**fields, out=folder / "killed", callbacks=[KillAt(kill_at)])
    fl.resume(folder / "killed", **objects)
    same_run(folder / "killed", whole.directory)
    assert "consistent" in fl.replay(folder / "killed")
    return whole
