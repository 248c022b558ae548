"""Placement of clients on workers: worker groups for tiers of devices, missing workers, data that nodes read."""

import logging
import re
import sys
from pathlib import Path
from typing import Any

import pytest
import ray
from execution import execute
from refusals import refuses
from same_run import same

from actors.cluster import engine, follower
from actors.cluster.placement import find_node, server_options
from actors.worker.worker import Worker
from fedraa.api import run
from fedraa.client.trainer import Work
from fedraa.config.experiment import Experiment
from fedraa.devices.worker_groups import group_of_clients, parse_group
from fedraa.engine.build import build_run
from fedraa.errors import WorkersLost
from fedraa.messages import Update
from fedraa.rundir.history import History

# Workers cannot import a test module, so Ray sends its classes by value.
ray.cloudpickle.register_pickle_by_value(sys.modules[__name__])
pytestmark = [pytest.mark.cluster, pytest.mark.usefixtures("cluster")]


def experiment(**changes: Any) -> Experiment:
    return Experiment(**{"hidden": (8,), "clients": 4, "local_steps": 2, "updates": 24, **changes})


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> History:
    return run(experiment(engine="local", out=tmp_path_factory.mktemp("undisturbed")))


def test_clients_of_a_tier_train_on_the_worker_group_of_the_tier(undisturbed: History, tmp_path: Path) -> None:
    class RecordingWorker(Worker):
        def train(self, work: list[Work]) -> list[Update]:
            (tmp_path / f"{self.number} trained {work[0].task.client}").touch()
            return super().train(work)

    trial = experiment(compute="1:0.25,3:0.75")
    groups = (parse_group("1:CPU=1"), parse_group("1:CPU=0.5,memory=1000000"))
    owners = group_of_clients(groups, trial.compute, trial.clients)
    execute(build_run(trial), tmp_path / "run", RecordingWorker, groups=groups, group_of=owners)
    told = sorted(path.name for path in tmp_path.glob("* trained *"))
    assert told == ["0 trained 0", "1 trained 1", "1 trained 2", "1 trained 3"]


@pytest.mark.slow
def test_run_proceeds_with_a_warning_while_a_worker_waits_for_resources(
    undisturbed: History, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(follower, "START_WARNING_SECONDS", 0.0)
    # The cluster has twelve cores, so one of these four workers does not start.
    groups = ("3:CPU=5", "1:CPU=1")
    with caplog.at_level(logging.WARNING):
        history = run(experiment(resources=groups, placement="spread", out=tmp_path / "run"))
    same(history.directory, undisturbed)
    assert re.search(r"workers: \d of 4 .* 1 CPU or 5 CPU", caplog.text)


def test_nodes_read_the_data_and_the_driver_sends_none(
    undisturbed: History, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # The driver sends no data.
    monkeypatch.delattr(engine, "put_blocks")
    same(run(experiment(data_on_nodes=True, workers=1, out=tmp_path / "run")).directory, undisturbed)


@pytest.mark.slow
def test_a_node_with_other_data_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engine, "data_checksum", lambda data: 0)
    with refuses("workers", "data_dir: digits", error=WorkersLost):
        run(experiment(data_on_nodes=True, workers=1, out=tmp_path / "run"))


def test_server_node_must_exist_and_have_enough_memory() -> None:
    (node,) = [node for node in ray.nodes() if node["Alive"]]
    assert find_node(node["NodeID"]) == find_node("CPU") == node
    with refuses("server_node", got="mars"):
        find_node("mars")
    with refuses("server_node", "1e+06 GB"):
        server_options(node, 1e15)
