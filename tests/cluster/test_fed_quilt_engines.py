"""Fed-Quilt with its defaults: the same on Ray as in one process, and on shards as on one server."""

from pathlib import Path
from typing import Any

import pytest

from fedraa import Experiment, History, resume, run

pytestmark = pytest.mark.cluster


def go(out: Path, **flags: Any) -> History:
    common: dict[str, Any] = {"method": "fed-quilt", "clients": 5, "hidden": (16,), "partition": "dirichlet"}
    common |= {"compute": "lognormal:0.5", "local_steps": "auto:3", "updates": 25, "quiet": True}
    common |= {"override": {"update.participation_correction": 0.5}, "out": out}
    return run(Experiment(**common | flags))


def story(history: History) -> list[dict[str, Any]]:
    """Return the dispatches and commits of a run, which do not depend on the speed of workers."""
    kinds = ("dispatch", "commit")
    return [
        {name: value for name, value in line.items() if name not in ("wall", "seq")}
        for line in history.lines()
        if line["kind"] in kinds
    ]


def test_two_workers_and_two_shards_make_the_same_run_as_one_process(tmp_path: Path) -> None:
    here = go(tmp_path / "here", engine="local", checkpoint_every=10)
    there = go(tmp_path / "there", engine="ray", workers=2, server_shards=2, checkpoint_every=10)
    assert story(here) == story(there)
    assert here.evals["accuracy"].tolist() == there.evals["accuracy"].tolist()
    assert here.summary["model_sha256"] == there.summary["model_sha256"]
    longer = go(tmp_path / "longer", engine="local", updates=40)
    assert resume(there.directory, updates=40).summary["model_sha256"] == longer.summary["model_sha256"]
