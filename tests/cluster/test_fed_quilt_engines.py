"""Fed-Quilt is the same run on Ray and in one process, and, if the server only adds deltas, on shards."""

from pathlib import Path
from typing import Any

import pytest
from execution import run_warm

from fedraa import History, resume, run

pytestmark = pytest.mark.cluster


FLAGS: dict[str, Any] = {
    "method": "fed-quilt",
    "clients": 5,
    "hidden": (16,),
    "partition": "dirichlet",
    "compute": "lognormal:0.5",
    "local_steps": "auto:3",
    "updates": 25,
    "quiet": True,
    "override": {"update.participation_correction": 0.5},
}


def dispatches_and_commits(history: History) -> list[dict[str, Any]]:
    """Return the dispatches and commits of a run, which do not depend on the speed of workers."""
    kinds = ("dispatch", "commit")
    return [
        {name: value for name, value in line.items() if name not in ("wall", "seq")}
        for line in history.lines()
        if line["kind"] in kinds
    ]


@pytest.mark.parametrize("flags", [{}, {"async_rule": "delta", "server_shards": 2}])
def test_two_workers_and_two_shards_make_the_same_run_as_one_process(
    flags: dict[str, Any], warm_workers: tuple[Any, ...], tmp_path: Path
) -> None:
    there = run_warm(warm_workers, tmp_path / "there", **FLAGS | flags)
    here = run(engine="local", out=tmp_path / "here", **FLAGS | flags | {"server_shards": 1})
    assert dispatches_and_commits(here) == dispatches_and_commits(there)
    assert here.evals["accuracy"].tolist() == there.evals["accuracy"].tolist()
    assert here.summary["model_sha256"] == there.summary["model_sha256"]


@pytest.mark.slow
def test_extended_run_on_shards_equals_a_longer_local_run(tmp_path: Path) -> None:
    flags = FLAGS | {"async_rule": "delta"}
    there = run(workers=2, server_shards=2, checkpoint_every=10, out=tmp_path / "there", **flags)
    longer = run(engine="local", out=tmp_path / "longer", **flags | {"updates": 40})
    assert resume(there.directory, updates=40).summary["model_sha256"] == longer.summary["model_sha256"]
