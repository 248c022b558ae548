"""Consecutive runs in one process leave no actors, processes or objects behind."""

import os
import time
from pathlib import Path

import pytest
import ray

from benchmarks.system.processes import list_descendants, process_title
from fedraa.api import run
from fedraa.config.experiment import Experiment

pytestmark = [pytest.mark.cluster, pytest.mark.usefixtures("cluster")]

# Seconds until Ray has removed the killed processes.
PATIENCE = 60


def resources_in_use() -> list[object]:
    """Return the actors, processes and object memory that are in use."""
    actors = ("ray::Worker", "ray::ParameterServer")
    whole, free = ray.cluster_resources(), ray.available_resources()
    return [
        *(name for process in list_descendants(os.getpid()) if (name := process_title(process)).startswith(actors)),
        *((what, free.get(what)) for what in ("CPU", "object_store_memory") if free.get(what) != whole[what]),
    ]


@pytest.mark.slow
@pytest.mark.parametrize("runs", [3, 10])
@pytest.mark.linux
def test_runs_leave_no_actor_and_no_object(runs: int, tmp_path: Path) -> None:
    digests = set()
    for number in range(runs):
        history = run(
            Experiment(hidden=(8,), clients=4, local_steps=1, updates=12, workers=1, out=tmp_path / str(number))
        )
        digests.add(history.summary["model_sha256"])
    assert len(digests) == 1
    give_up = time.monotonic() + PATIENCE
    while resources_in_use() and time.monotonic() < give_up:
        time.sleep(0.5)
    assert resources_in_use() == []
