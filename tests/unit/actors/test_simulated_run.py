"""Runs of driver, follower, relay, placement, probes and executor on a simulated cluster under all kinds of faults.

Each seed gives one order of deaths, delays, losses, duplicates and freezes, and `run_seeds.py` tries many seeds. Every
run must end with the model, the log and the events of callbacks of a run without faults.
"""

import logging
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule
from simulated_actors import HostActor
from simulated_cluster import Server, simulated_cluster
from simulated_ray import FOREVER_S, Faults, Stage
from simulated_run import FAR, OTHER, Plan, SimulatedRun, play
from simulated_session import Sync
from simulated_worker import SimulatedWorker

from actors.cluster.follower import STOP_SECONDS
from actors.server.parameter_server import ParameterServer
from fedraa.errors import RunFailed, Unwritable


@pytest.fixture(autouse=True)
def cluster(caplog: pytest.LogCaptureFixture) -> Iterator[None]:
    caplog.set_level(logging.CRITICAL)
    with simulated_cluster():
        yield


@pytest.mark.parametrize("first", range(0, 400, 50))
def test_run_with_the_faults_of_a_seed_ends_like_an_undisturbed_run(first: int) -> None:
    for seed in range(first, first + 50):
        play(seed)


@pytest.mark.slow
def test_run_with_the_faults_of_many_seeds_ends_like_an_undisturbed_run() -> None:
    for seed in range(400, 5000):
        play(seed)


def test_loss_of_the_server_node_ends_the_run_with_the_resume_command() -> None:
    run = SimulatedRun(0, Faults(), Plan(is_far=True))
    try:
        run.advance(6.0)
        run.kill_node(FAR)
        run.simulation.block(lambda: run.driver.is_done, 100.0)
        assert isinstance(run.driver.error, RunFailed)
        assert "fedraa resume" in str(run.driver.error)
        run.finish()
    finally:
        run.close()


def test_stopped_run_ends_without_an_error_if_the_last_files_are_late(monkeypatch: pytest.MonkeyPatch) -> None:
    changes = Server.changes

    def slow_changes(self: Server, seen: Any) -> Any:
        if self._outcome is not None and self._outcome.done():
            Stage.simulation.sleep(2 * STOP_SECONDS)
        return changes(self, seen)

    monkeypatch.setattr(Server, "changes", slow_changes)
    run = SimulatedRun(0, Faults(), Plan(is_far=True))
    try:
        run.advance(3.0)
        run.ask_to_stop()
        run.simulation.block(lambda: run.driver.is_done, 100.0)
        assert (run.driver.error, run.driver.result) == (None, False)
        run.finish()
    finally:
        run.close()


def test_the_server_removes_its_temporary_files_after_the_last_copy(monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[str] = []

    def changes(self: Server, seen: Any) -> Any:
        calls.append("changes")
        return ParameterServer.changes(self, seen)

    monkeypatch.setattr(Server, "changes", changes)
    monkeypatch.setattr(Server, "close", lambda self: calls.append("close"))
    run = SimulatedRun(0, Faults(), Plan(is_far=True))
    try:
        run.finish()
    finally:
        run.close()
    assert calls[-2:] == ["changes", "close"]


def test_the_server_removes_its_temporary_files_if_the_copy_cannot_be_written(monkeypatch: pytest.MonkeyPatch) -> None:
    closed: list[Server] = []

    def apply(self: Sync, changes: Any) -> None:
        raise Unwritable("run", "it cannot be written: No space left on device")

    monkeypatch.setattr(Sync, "apply", apply)
    monkeypatch.setattr(Server, "close", lambda self: closed.append(self))
    run = SimulatedRun(0, Faults(), Plan(is_far=True))
    try:
        run.simulation.block(lambda: run.driver.is_done, 100.0)
        assert isinstance(run.driver.error, Unwritable)
    finally:
        run.close()
    assert len(closed) == 1


PROBABLE = st.sampled_from([0.0, 0.0, 0.1])
KINDS = st.sampled_from([SimulatedWorker, SimulatedWorker, HostActor])


class ClusterMachine(RuleBasedStateMachine):
    """A run that Hypothesis disturbs step by step."""

    run: SimulatedRun | None = None

    @initialize(
        seed=st.integers(0, 2**32 - 1),
        faults=st.builds(
            Faults,
            lost=st.sampled_from([0.0, 0.05, 0.3]),
            copied=PROBABLE,
            deaths=PROBABLE,
            freezes=PROBABLE,
            max_delay_s=st.sampled_from([0.02, 0.5]),
        ),
        plan=st.builds(
            Plan,
            is_far=st.booleans(),
            workers=st.integers(1, 2),
            groups=st.integers(1, 2),
            ends_at=st.sampled_from([None, 10]),
            fails_at=st.sampled_from([None, 5]),
        ),
    )
    def begin(self, seed: int, faults: Faults, plan: Plan) -> None:
        self.run = SimulatedRun(seed, faults, plan)

    @rule(seconds=st.floats(0.0, 12.0))
    def let_time_pass(self, seconds: float) -> None:
        self.run.advance(seconds)

    @rule(kind=KINDS)
    def kill(self, kind: type) -> None:
        self.run.kill(kind)

    @rule(kind=KINDS, seconds=st.sampled_from([1.0, 5.0, FOREVER_S]))
    def freeze(self, kind: type, seconds: float) -> None:
        self.run.freeze(kind, seconds)

    @rule(name=st.sampled_from([FAR, OTHER]))
    def kill_node(self, name: str) -> None:
        self.run.kill_node(name)

    @rule(name=st.sampled_from([FAR, OTHER]))
    def join_node(self, name: str) -> None:
        self.run.join_node(name)

    @precondition(lambda self: self.run is not None and not self.run.simulation.is_lost)
    @rule()
    def lose_cluster(self) -> None:
        self.run.lose_cluster()

    @rule()
    def ask_to_stop(self) -> None:
        self.run.ask_to_stop()

    def teardown(self) -> None:
        if self.run is not None:
            try:
                self.run.finish()
            finally:
                self.run.close()


def test_run_with_any_sequence_of_faults_ends_like_an_undisturbed_run() -> None:
    ClusterMachine.TestCase.settings = settings(max_examples=60, stateful_step_count=12, deadline=None)
    ClusterMachine.TestCase().runTest()
