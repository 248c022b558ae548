"""Runs that train in stacks: the same bits on any engine, with any number of workers, and after a death."""

import sys
from pathlib import Path
from threading import Event
from typing import Any

import pytest
import ray
from mishaps import die, first
from same_run import same

from actors.jobs import Job
from actors.pool import RayPool
from actors.worker import Worker
from fedraa import Experiment, run
from fedraa.assembly import assemble
from fedraa.crews import Crew
from fedraa.messages import Update
from fedraa.runner import Runner

ray.cloudpickle.register_pickle_by_value(sys.modules[__name__])  # workers cannot import a test
pytestmark = [pytest.mark.cluster, pytest.mark.usefixtures("cluster")]

METHODS: list[dict[str, Any]] = [
    {"method": "fedavg", "rounds": 3},
    {"method": "fed-raa", "updates": 40},
    {"method": "ra-fed", "rounds": 3},
]


def experiment(**changes: Any) -> Experiment:
    return Experiment(**({"clients": 10, "hidden": (20,), "local_epochs": 1, "stack": 4, "quiet": True} | changes))


@pytest.mark.parametrize("method", METHODS, ids=lambda method: method["method"])
def test_bits_are_those_of_the_local_engine(method: dict[str, Any], tmp_path: Path) -> None:
    local = run(experiment(**method, engine="local", out=tmp_path / "local"))
    for workers in (1, 2):
        directory = tmp_path / str(workers)
        run(experiment(**method, workers=workers, out=directory))
        same(directory, local)
    alone = run(experiment(**method, engine="local", stack=1, out=tmp_path / "alone"))
    assert alone.summary["accuracy"] == pytest.approx(local.summary["accuracy"], abs=0.03)


def mortal(mark: Path) -> type[Worker]:
    """A worker that dies once, when it has trained a stack, before it can say so."""

    class Mortal(Worker):
        def train_all(self, jobs: list[Job], *beside: Any) -> list[Update]:
            updates = super().train_all(jobs, *beside)
            if len(jobs) > 1 and first(mark):
                die()
            return updates

    return Mortal


def test_a_worker_that_dies_at_a_stack_changes_nothing(tmp_path: Path) -> None:
    """Its tasks go again, each in a stack of its own."""
    trial = experiment(**METHODS[1])
    local = run(trial.model_copy(update={"engine": "local", "out": tmp_path / "local"}))
    assembly, directory = assemble(trial), tmp_path / "run"
    directory.mkdir()
    pool = RayPool.of(assembly, crews=(Crew(2, {"CPU": 1}),), worker=mortal(tmp_path / "mark"))
    try:
        Runner(assembly, directory, pool, Event()).execute()
    finally:
        pool.close()
    assert (tmp_path / "mark").exists()
    same(directory, local)
