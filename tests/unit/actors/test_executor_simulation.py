"""The executor over a simulation of Ray: each seed gives one order of delays, losses, deaths and freezes.

Every run must end with the log and the bits of a run without Ray, except for faults.
"""

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any
from unittest import mock

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from simulated_ray import FOREVER_S, Faults, SimulatedRay, simulated_runtime
from simulated_worker import SimulatedWorker, evaluate, train

from actors.pool import liveness
from actors.pool.executor import RayExecutor
from actors.pool.handles import MAX_IDLE_S, WorkerHandle
from benchmarks.system.chaos_kills import comparable_log
from fedraa.config.experiment import Experiment
from fedraa.devices.worker_groups import WorkerGroup
from fedraa.engine.build import build_run
from fedraa.engine.executor import FinishedEvaluation, LocalExecutor
from fedraa.engine.run_spec import RunSpec
from fedraa.engine.session import RunSession
from fedraa.messages import Fault, State, Task, Update, Vector
from fedraa.rundir.history import History


@dataclass
class SimulatedExecutor(RayExecutor):
    """The executor with simulated workers."""

    simulation: Any = None

    def _create_actor(self, number: int, group: int, device: str) -> Any:
        return self.simulation.create(SimulatedWorker(self.simulation, number=number))


class Direct(LocalExecutor):
    """An executor without workers that trains as the simulated workers do."""

    def __init__(self) -> None:
        self._sent: dict[int, Task] = {}

    def submit(self, task: Task, due: float) -> None:
        self._sent[task.id] = task

    def wait(self, task: int, timeout: float) -> Update | Fault | None:
        return train(self._sent.pop(task))

    def busy(self) -> tuple[int, int]:
        return 1, 1

    def evaluate(self, params: Vector, kept: State) -> FinishedEvaluation:
        return FinishedEvaluation(params.copy(), kept, evaluate(params))


@contextmanager
def simulated(seed: int, faults: Faults) -> Iterator[SimulatedRay]:
    """Replace Ray and the time."""
    simulation = SimulatedRay(seed, faults)
    quiet = mock.patch.multiple(liveness, load_factor=lambda: 1.0, knows_cpu_seconds=lambda: True)
    with simulated_runtime() as stage, quiet:
        stage.simulation = simulation
        yield simulation


def make_spec(method: str) -> RunSpec:
    limits: dict[str, Any] = {"updates": 40}
    if method == "fedavg":
        limits = {"rounds": 8}
    return build_run(Experiment(method=method, hidden=(8,), clients=5, local_steps=1, checkpoint_every=10, **limits))


def execute(spec: RunSpec, directory: Path, pool: Any) -> History:
    directory.mkdir()
    RunSession(spec, directory, pool, threading.Event()).execute()
    return History(directory)


@dataclass(repr=False)
class Case:
    """A run, and its result without Ray."""

    spec: RunSpec
    history: History


@pytest.fixture(scope="module", params=["fed-raa", "fedavg"])
def case(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Case:
    spec = make_spec(request.param)
    return Case(spec, execute(spec, tmp_path_factory.mktemp("undisturbed") / "run", Direct()))


@settings(max_examples=8)
@given(
    seed=st.integers(0, 2**32 - 1),
    lost=st.sampled_from([0.0, 0.05, 0.3]),
    deaths=st.sampled_from([0.0, 0.1]),
    freezes=st.sampled_from([0.0, 0.1]),
    unbegun=st.sampled_from([0.0, 0.05]),
)
def test_run_with_any_order_of_faults_ends_with_the_same_bits(
    case: Case, seed: int, lost: float, deaths: float, freezes: float, unbegun: float
) -> None:
    with (
        TemporaryDirectory() as name,
        simulated(seed, Faults(lost=lost, deaths=deaths, freezes=freezes, unbegun=unbegun)) as simulation,
    ):
        pool = SimulatedExecutor.of(case.spec, groups=(WorkerGroup(2, {"CPU": 1}),), simulation=simulation)
        history = execute(case.spec, Path(name) / "run", pool)
        assert comparable_log(history.lines()) == comparable_log(case.history.lines())
        assert history.summary["model_sha256"] == case.history.summary["model_sha256"]
        if not deaths and not freezes and not unbegun:
            assert [line for line in history.lines() if line["kind"] == "fault"] == []


def test_a_worker_that_freezes_without_a_task_is_replaced(case: Case) -> None:
    """The worker has no call in progress, so its end cannot be attributed to a task."""
    with simulated(0, Faults()) as simulation:
        pool = SimulatedExecutor.of(case.spec, groups=(WorkerGroup(2, {"CPU": 1}),), simulation=simulation)
        assert pool.await_workers(10.0)
        # The task takes so long that the pings of the other worker are missed meanwhile.
        simulation.rng.expovariate = lambda rate: 100.0
        _, idle = simulation.actors
        task = Task(0, 0, 0, 0, 0, 0, (), np.ones(3, np.float32), 0.1, 1.0)
        pool.submit(task, 0.0)
        assert pool.wait(task.id, 10.0) is None
        idle.freeze(FOREVER_S)
        fault = pool.wait(task.id, 200.0)
        assert isinstance(fault, Fault)
        assert (fault.task, fault.worker) == (None, idle.number)
        assert isinstance(pool.wait(task.id, 200.0), Update)
        assert idle.is_dead


def test_workers_are_counted_while_another_thread_ends_the_run(case: Case) -> None:
    with simulated(0, Faults()) as simulation:
        pool = SimulatedExecutor.of(case.spec, groups=(WorkerGroup(2, {"CPU": 1}),), simulation=simulation)
        with mock.patch.object(WorkerHandle, "blocks", new_callable=mock.PropertyMock, side_effect=pool.close):
            assert pool.busy() == (0, 0)


def test_worker_that_never_begins_its_call_is_ended_with_a_fault(case: Case) -> None:
    """The first call of its kind may take an hour, but its worker stays idle."""
    with simulated(0, Faults(unbegun=1.0)) as simulation:
        pool = SimulatedExecutor.of(case.spec, groups=(WorkerGroup(1, {"CPU": 1}),), simulation=simulation)
        assert pool.await_workers(10.0)
        (first,) = simulation.actors
        task = Task(0, 0, 0, 0, 0, 0, (), np.ones(3, np.float32), 0.1, 1.0)
        started = simulation.now
        pool.submit(task, 0.0)
        assert pool.wait(task.id, 20.0) is None
        assert not first.is_dead
        simulation.faults = Faults()
        fault = pool.wait(task.id, 200.0)
        assert isinstance(fault, Fault)
        assert (fault.task, fault.worker) == (task.id, first.number)
        assert first.is_dead
        assert simulation.now - started < 2 * MAX_IDLE_S


def test_workers_get_new_calls_while_a_round_is_dispatched(case: Case) -> None:
    """Until the last submit, the executor is never asked for an outcome."""
    with simulated(0, Faults()) as simulation:
        pool = SimulatedExecutor.of(case.spec, groups=(WorkerGroup(1, {"CPU": 1}),), simulation=simulation)
        assert pool.await_workers(10.0)
        tasks = [Task(number, 0, 0, 0, 0, 0, (), np.ones(3, np.float32), 0.1, 1.0) for number in range(8)]
        with mock.patch.object(SimulatedWorker, "begin", autospec=True, side_effect=SimulatedWorker.begin) as begin:
            for task in tasks:
                pool.submit(task, 0.0)
                simulation.sleep(10.0)
        assert begin.call_count == len(tasks)
        assert all(isinstance(pool.wait(task.id, 0.0), Update) for task in tasks)


def test_long_task_does_not_count_as_a_call_that_never_begins(case: Case) -> None:
    with simulated(0, Faults()) as simulation:
        pool = SimulatedExecutor.of(case.spec, groups=(WorkerGroup(1, {"CPU": 1}),), simulation=simulation)
        assert pool.await_workers(10.0)
        simulation.rng.expovariate = lambda rate: 10 * MAX_IDLE_S
        task = Task(0, 0, 0, 0, 0, 0, (), np.ones(3, np.float32), 0.1, 1.0)
        pool.submit(task, 0.0)
        assert isinstance(pool.wait(task.id, 20 * MAX_IDLE_S), Update)
