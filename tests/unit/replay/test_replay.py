"""Genuine runs are consistent for every method, clock and end."""

import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from replaying import ASYNCHRONOUS, SYNCHRONOUS, WAITING, read, small, write

from fedraa import run
from fedraa.api import resume
from fedraa.callbacks import Callback, Event
from fedraa.callbacks.callback_list import CallbackList
from fedraa.engine.build import build_run
from fedraa.engine.executor import LocalExecutor
from fedraa.engine.factories import make_worker_spec
from fedraa.engine.session import RunSession
from fedraa.errors import Inconsistent
from fedraa.messages import Fault, Update
from fedraa.replay.replay import replay


@pytest.mark.parametrize("method", [*ASYNCHRONOUS, *SYNCHRONOUS])
def test_genuine_run_is_consistent(method: str, genuine: Callable[[str], Path]) -> None:
    commits = 40 if method in ASYNCHRONOUS else 6 * 5
    if method == "prunefl":
        # Only the first client trains in five rounds, and all five clients in one round.
        commits = 5 * 1 + 5
    if method in WAITING:
        commits = sum(line["kind"] == "commit" for line in read(genuine(method)))
        assert commits > 20
    assert f"{commits} commit" in replay(genuine(method))


@pytest.mark.parametrize("participation", ["sample:2", "bernoulli:0.4"])
@pytest.mark.parametrize("method", ["fedavg", "heterofl"])
def test_cohorts_follow_from_the_seed(method: str, participation: str, tmp_path: Path) -> None:
    directory = run(small(method, tmp_path / "run", participation=participation, checkpoint_every=2)).directory
    assert "3 checkpoint" in replay(directory)
    log = read(directory)
    line = [line for line in log if line["kind"] == "dispatch"][-1]
    line["client"] = (line["client"] + 1) % 5
    write(directory, log)
    with pytest.raises(Inconsistent, match=rf"line {line['seq'] + 1} \(dispatch\) client: "):
        replay(directory)


@pytest.mark.parametrize("method", ["fed-quilt", "fedavg"])
def test_automatic_steps_of_clients_with_other_labels_are_consistent(method: str, tmp_path: Path) -> None:
    flags: dict[str, Any] = {"local_steps": "auto", "local_epochs": None, "partition": "labels:2"}
    assert "consistent" in replay(run(small(method, tmp_path / "run", **flags)).directory)


@pytest.mark.parametrize("method", ["fed-raa", "fed-raa-random", "fedasync", "fed-raa-sync", "fedavg"])
def test_wall_clock_run_is_consistent(method: str, tmp_path: Path) -> None:
    assert "consistent" in replay(run(small(method, tmp_path / "run", clock="wall", time_scale=0.02)).directory)


@pytest.mark.parametrize(
    ("reason", "flags"),
    [
        ("time", {"time": 0.1}),
        ("time", {"time": 0.01}),
        ("time", {"time": 1.0, "clock": "wall", "time_scale": 0.1}),
        ("accuracy", {"target_accuracy": 0.5, "eval_every": 4}),
        ("accuracy", {"target_accuracy": 0.01}),
        ("accuracy", {"target_accuracy": 0.5, "clock": "wall", "time_scale": 0.02, "updates": 400}),
        ("steps", {"eval_every": 7, "duration_jitter": 0.0}),
        ("steps", {"updates": 1, "override": {"local.sam_rho": 0.05}, "local_steps": 3, "local_epochs": None}),
    ],
)
def test_every_ending_is_consistent(reason: str, flags: dict[str, Any], tmp_path: Path) -> None:
    assert f"ended by {reason}" in replay(run(small("fed-raa", tmp_path / "run", **flags)).directory)


def test_end_by_time_before_the_last_evaluation_is_consistent(tmp_path: Path) -> None:
    """The evaluation of the last model has the time of its update, also if it started later."""

    class Slow(Callback):
        def on_commit(self, event: Event) -> None:
            time.sleep(0.6)

    directory = tmp_path / "run"
    flags: dict[str, Any] = {"clock": "wall", "time": 0.5, "time_scale": 0.02, "eval_every": 1}
    run(small("fed-raa", directory, **flags), callbacks=[Slow()])
    assert "1 commit, " in replay(directory)
    (last,) = (line for line in read(directory) if line["kind"] == "eval" and line["step"] == 1)
    assert last["t"] < 0.5


def test_interrupted_and_resumed_run_is_consistent(tmp_path: Path) -> None:
    stop = threading.Event()

    class StopAt7(Callback):
        commits = 0

        def on_commit(self, event: Event) -> None:
            self.commits += 1
            if self.commits == 7:
                stop.set()

    spec = build_run(small("fed-raa", tmp_path))
    assert not RunSession(spec, tmp_path, local_pool(spec), stop, CallbackList([StopAt7()])).execute()
    assert "consistent so far, but the run has not ended" in replay(tmp_path)
    assert "40 commit" in replay(resume(tmp_path).directory)


def test_devices_in_physical_units_with_little_memory_are_consistent(tmp_path: Path) -> None:
    devices = tmp_path / "devices.csv"
    devices.write_text(
        "compute,downlink,uplink,latency,memory\n1e8,1e5,5e4,0.1,1e6\n3e8,1e6,inf,0,3800\n2e8,inf,1e5,0.2,inf\n"
    )
    flags = {"compute": str(devices), "units": "physical", "clients": 3, "scheduler": "minimum-priority"}
    directory = run(small("fed-raa", tmp_path / "run", **flags)).directory
    assert "consistent" in replay(directory)
    # 3800 bytes hold the step of only fragments 0 and 1 (2180 and 3036 bytes). The third takes 4456 bytes.
    held = {line["fragment"] for line in read(directory) if line["kind"] == "dispatch" and line["client"] == 1}
    assert held == {0, 1}


def test_two_partitioned_layers_leave_blocks_uncovered(tmp_path: Path) -> None:
    directory = run(small("fed-raa-sync", tmp_path / "run", hidden=(20, 30), fragments=2)).directory
    assert "consistent" in replay(directory)
    # The fragments have 40 and 60 % of 20 and of 30 units. The blocks 8 x 18 and 12 x 12 belong to neither.
    assert {line["uncovered"] for line in read(directory) if line["kind"] == "round"} == {8 * 18 + 12 * 12}


class Flaky(LocalExecutor):
    """An executor that loses the first attempt at task 3."""

    lost = False

    def wait(self, task: int, timeout: float) -> Update | Fault | None:
        if task == 3 and not self.lost:
            self.lost = True
            return Fault(task=3, worker=0, error="lost")
        return super().wait(task, timeout)


def local_pool(spec: Any, kind: type[LocalExecutor] = LocalExecutor) -> LocalExecutor:
    worker = make_worker_spec(spec)
    return kind(worker.trainer("cpu"), worker.evaluator(spec.evaluation_data, "cpu"), spec.data)


def test_retried_task_is_consistent(tmp_path: Path) -> None:
    spec = build_run(small("fed-raa", tmp_path))
    RunSession(spec, tmp_path, local_pool(spec, Flaky), threading.Event()).execute()
    assert "1 fault" in replay(tmp_path)
    log = read(tmp_path)
    fault = next(line for line in log if line["kind"] == "fault")
    fault["task"] = 99
    write(tmp_path, log)
    with pytest.raises(Inconsistent, match=rf"line {fault['seq'] + 1} \(fault\) task: got 99"):
        replay(tmp_path)
