"""Assertions that two runs are equal."""

from pathlib import Path
from typing import Any

from execution import run_warm

from benchmarks.system.chaos_kills import comparable_log
from fedraa import Experiment, run
from fedraa.rundir.history import History


def same(directory: Path, undisturbed: History) -> None:
    """Assert equal events, apart from faults and real times, and the same final bits."""
    history = History(directory)
    assert comparable_log(history.lines()) == comparable_log(undisturbed.lines())
    assert history.summary["model_sha256"] == undisturbed.summary["model_sha256"]


def same_on_ray(warm_workers: tuple[Any, ...], folder: Path, **fields: Any) -> tuple[History, History]:
    """Run an experiment in this process and on the warm workers, and assert that both runs are equal.

    Returns the run in this process and the run on the workers. The former has one server shard.
    """
    local = run(Experiment(**fields | {"server_shards": 1}, engine="local", out=folder / "local"))
    on_ray = run_warm(warm_workers, folder / "ray", **fields)
    same(on_ray.directory, local)
    return local, on_ray
