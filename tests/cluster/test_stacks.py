"""Runs with `vmap_batch`: the same bits on any engine, with any number of workers, and after a worker's death."""

import sys
from pathlib import Path
from typing import Any

import pytest
import ray
from execution import execute, execute_warm
from mishaps import die, first
from same_run import same

from actors.pool.serializer import Job
from actors.worker.worker import Worker
from fedraa import Experiment, run
from fedraa.engine.build import build_run
from fedraa.messages import Update

ray.cloudpickle.register_pickle_by_value(sys.modules[__name__])  # workers cannot import a test
pytestmark = [pytest.mark.cluster, pytest.mark.usefixtures("cluster")]

METHODS: list[Any] = [
    pytest.param({"method": "fedavg", "rounds": 3}, marks=pytest.mark.slow),
    {"method": "fed-raa", "updates": 40},
    pytest.param({"method": "ra-fed", "rounds": 3}, marks=pytest.mark.slow),
]


def experiment(**changes: Any) -> Experiment:
    return Experiment(**({"clients": 10, "hidden": (20,), "local_epochs": 1, "vmap_batch": 4, "quiet": True} | changes))


@pytest.mark.parametrize("method", METHODS, ids=lambda method: method["method"])
def test_run_with_vmap_batch_has_the_same_bits_on_ray_and_locally(
    method: dict[str, Any], warm_workers: tuple[Any, ...], tmp_path: Path
) -> None:
    local = run(experiment(**method, engine="local", out=tmp_path / "local"))
    for workers in (1, 2):
        directory = tmp_path / str(workers)
        execute_warm(warm_workers[:workers], build_run(experiment(**method)), directory)
        same(directory, local)
    alone = run(experiment(**method, engine="local", vmap_batch=1, out=tmp_path / "alone"))
    assert alone.summary["accuracy"] == pytest.approx(local.summary["accuracy"], abs=0.03)


def dying_once(mark: Path) -> type[Worker]:
    """Return a class of workers, one of which dies once, after it has trained a vmap batch and before it answers."""

    class DyingWorker(Worker):
        def train_all(self, jobs: list[Job], *shared_args: Any) -> list[Update]:
            updates = super().train_all(jobs, *shared_args)
            if len(jobs) > 1 and first(mark):
                die()
            return updates

    return DyingWorker


def test_death_of_a_worker_in_a_vmap_batch_changes_no_bit(tmp_path: Path) -> None:
    """Each task of a vmap batch that failed is sent again and trained separately."""
    trial = experiment(**METHODS[1])
    local = run(trial.model_copy(update={"engine": "local", "out": tmp_path / "local"}))
    history = execute(build_run(trial), tmp_path / "run", dying_once(tmp_path / "mark"), workers=1)
    assert (tmp_path / "mark").exists()
    same(history.directory, local)
