"""A run uses the Ray cluster that its process has joined before, and refuses the address of another cluster."""

import subprocess
import sys
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from ray.exceptions import ActorDiedError, ActorUnschedulableError, RuntimeEnvSetupError
from refusals import refuses

from actors import runtime
from actors.cluster import attach, engine, placement
from fedraa.callbacks.callback_list import CallbackList
from fedraa.config.experiment import Experiment
from fedraa.engine.build import build_run
from fedraa.errors import RunFailed

JOINED = "127.0.0.1:6379"


@pytest.fixture(autouse=True)
def joined(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let this process have joined a cluster of twelve CPUs that other processes have started."""
    monkeypatch.setattr(attach, "current_address", lambda: JOINED)
    monkeypatch.setattr(attach, "started_processes", lambda kind: [])
    monkeypatch.setattr(runtime, "resources", lambda: {"CPU": 12.0})
    monkeypatch.setattr(engine, "is_joined", lambda: True)


def start_own_cluster(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(attach, "started_processes", lambda kind: [SimpleNamespace()])


@pytest.mark.parametrize("address", ["127.0.0.1:7777", "ray://127.0.0.1:10001"])
def test_address_of_another_cluster_than_the_joined_one_is_refused(address: str) -> None:
    with refuses("address", address, JOINED, "ray.shutdown()"), engine.provide_cluster(Experiment(address=address), 4):
        pass


@pytest.mark.parametrize("address", ["auto", JOINED, "localhost:6379", None])
def test_joined_cluster_is_used_with_its_own_address_and_without_one(address: str | None) -> None:
    with engine.provide_cluster(Experiment(address=address), 4):
        pass


def test_only_a_cluster_of_other_processes_has_a_joined_address(monkeypatch: pytest.MonkeyPatch) -> None:
    assert attach.joined_address() == JOINED
    start_own_cluster(monkeypatch)
    assert attach.joined_address() is None


def count_default_workers(**options: Any) -> int:
    (group,) = placement.make_worker_groups(Experiment(**options), 100, "cpu")
    return group.workers


def test_each_core_of_a_joined_cluster_has_a_worker_by_default() -> None:
    assert count_default_workers() == 12
    assert count_default_workers(threads_per_worker=2) == 6
    assert count_default_workers(workers=50) == 50


def test_default_workers_fit_into_a_cluster_that_the_script_started(monkeypatch: pytest.MonkeyPatch) -> None:
    start_own_cluster(monkeypatch)
    monkeypatch.setattr("os.cpu_count", lambda: 3)
    assert count_default_workers() == 3
    monkeypatch.setattr(runtime, "resources", lambda: {"CPU": 1.0})
    assert count_default_workers() == 1


@pytest.mark.parametrize("value", ["nonsense", "127.0.0.1:1"])
def test_error_of_an_address_from_the_environment_names_the_variable(
    value: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(engine, "is_joined", lambda: False)
    monkeypatch.setenv("RAY_ADDRESS", value)
    with refuses("RAY_ADDRESS", value), engine.provide_cluster(Experiment(), 4):
        pass


def test_restarts_of_a_joined_cluster_are_refused(tmp_path: Path) -> None:
    spec = build_run(Experiment(hidden=(8,), clients=2))
    with refuses("restarts", got=2):
        engine.run_on_ray(spec, tmp_path, CallbackList([]), resume=False, restarts=2)


@pytest.mark.parametrize(("module", "hint"), [("actors", "instead of calling ray.init"), ("torch", "dependencies")])
def test_hint_about_a_missing_module_depends_on_the_module(module: str, hint: str) -> None:
    died = ActorDiedError()
    died.error_msg = f"The actor died.\nModuleNotFoundError: No module named '{module}'"
    watch = SimpleNamespace(confirm_lost=lambda: None)
    with refuses("address", module, hint):
        engine._check_is_death(died, watch, "far")  # type: ignore[arg-type]


def test_server_that_no_node_can_host_counts_as_dead() -> None:
    watch = SimpleNamespace(confirm_lost=lambda: None)
    engine._check_is_death(ActorUnschedulableError("the node does not exist any more"), watch, "far")  # type: ignore[arg-type]


def test_node_that_cannot_install_the_code_fails_the_run_in_one_sentence() -> None:
    error = RuntimeEnvSetupError("Traceback:\n  line 1\nOSError: No space left on device\n")
    watch = SimpleNamespace(confirm_lost=lambda: None)
    with refuses("server", "far", "OSError", error=RunFailed) as failed:
        engine._check_is_death(error, watch, "far")  # type: ignore[arg-type]
    assert "Traceback" not in str(failed.value)


DIES = """
import os
from pathlib import Path
from actors.cluster import engine

engine.resume_command = lambda spec, directory: f"fedraa resume {directory}"
with engine._explain_lost_raylet(None, Path("runs/far"), "127.0.0.1:6379"):
    os._exit(1)
"""


@pytest.mark.slow
def test_process_that_ray_ends_with_its_raylet_prints_how_to_resume() -> None:
    ended = subprocess.run([sys.executable, "-c", DIES], capture_output=True, text=True, check=False)
    assert ended.returncode == 1
    assert ended.stderr.startswith("fedraa: cluster: ")
    assert ended.stderr.endswith("resume with: fedraa resume runs/far\n")


@pytest.mark.parametrize("address", [None, "ray://127.0.0.1:10001"])
def test_process_without_a_raylet_of_others_is_not_watched(address: str | None) -> None:
    spec: Any = None
    assert isinstance(engine._explain_lost_raylet(spec, Path("runs/far"), address), nullcontext)
