"""A cluster of our own is warm when it is there."""

import subprocess
import sys

import pytest

pytestmark = pytest.mark.cluster

LOOK = """
import ray
from actors.cluster.engine import cluster
from fedraa import Experiment

def imported():
    import sys
    return "actors.worker.worker" in sys.modules

with cluster(Experiment(workers=1)):
    print(ray.get(ray.remote(imported).remote()))
"""


def test_its_processes_have_imported_what_workers_need() -> None:
    ended = subprocess.run([sys.executable, "-c", LOOK], capture_output=True, text=True, check=True)
    assert ended.stdout.strip() == "True"
