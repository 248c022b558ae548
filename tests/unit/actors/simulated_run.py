"""A run on a simulated cluster: the driver's restarts, follower and placement, the server's relay and executor.

The driver is `actors.cluster.engine`, and the server is `ParameterServer` with a small session in place of training.
The seed decides the order of all events. A run must end with the model and the events of a run without faults, at most
END_S simulated seconds after the faults stop.
"""

import threading
from dataclasses import dataclass
from functools import partial
from types import SimpleNamespace
from typing import Any

import numpy as np
from coroutines import Coroutine, end_coroutines, start_coroutine
from simulated_actors import HostActor
from simulated_ray import HERE, Faults, Node, SimulatedRay, Stage
from simulated_session import CLIENTS, Direct, Disk, Session
from simulated_worker import SimulatedWorker

from actors.cluster import engine
from actors.cluster.follower import ClusterLost
from actors.pool.liveness import Heartbeat
from actors.pool.serializer import Blocks
from actors.server.parameter_server import Setting
from actors.server.relay import Audience
from fedraa.callbacks import Callback
from fedraa.callbacks.callback_list import CallbackList
from fedraa.devices.worker_groups import WorkerGroup
from fedraa.engine.stop_signals import Stop
from fedraa.errors import CallbackRaised, InputError, RunFailed

END_S = 400.0
MAX_RESUMPTIONS = 4
# With at most this share of lost messages, and with at least this number of retries, no seed loses so many pings that
# an actor counts as frozen.
MAX_HARMLESS_LOSS = 0.05
MIN_HARMLESS_RETRIES = 10
FAR = "1" * 56
OTHER = "2" * 56
# The errors that end a run under faults. Each of them has a command that continues the run.
ENDS = (RunFailed, ClusterLost, InputError, KeyboardInterrupt)


class Recorder(Callback):
    """A callback that records the events since the start of the run."""

    blocking = False

    def __init__(self) -> None:
        self.events: list[object] = []
        self.starts = 0

    def on_start(self, run: Any) -> None:
        self.events = []
        self.starts += 1

    def on_commit(self, event: Any) -> None:
        self.events.append(event["task"])

    def on_eval(self, step: int, t: float, metrics: Any) -> None:
        self.events.append((step, metrics["loss"]))


class Stopper(Callback):
    """A callback for which the run waits. At an evaluation it ends the run, or raises an error once."""

    def __init__(self, ends_at: int | None, fails_at: int | None) -> None:
        self._ends_at = ends_at
        self._fails_at = fails_at

    def on_eval(self, step: int, t: float, metrics: Any) -> bool:
        if step == self._fails_at:
            self._fails_at = None
            raise ArithmeticError("the callback failed")
        return step == self._ends_at


@dataclass
class Plan:
    """The properties of a run besides its faults.

    Attributes:
        is_far: True if the server is on another node than the driver.
        workers: Number of workers in each group.
        ends_at: The step at which a callback ends the run.
        fails_at: The step at which a callback raises an error.
        groups: Number of worker groups.
    """

    is_far: bool = False
    workers: int = 2
    ends_at: int | None = None
    fails_at: int | None = None
    groups: int = 1


class SimulatedRun:
    """A run on a simulated cluster of three nodes: the driver's node and two others."""

    def __init__(self, seed: int, faults: Faults, plan: Plan) -> None:
        nodes = [Node(HERE, 2.0), Node(FAR, 2.0), Node(OTHER, 1.0)]
        self.plan = plan
        self.faults = faults
        self.simulation = SimulatedRay(seed, faults, nodes)
        self.rng = self.simulation.rng
        self.disk = Disk()
        self.recorder = Recorder()
        self.callbacks = CallbackList([self.recorder, Stopper(plan.ends_at, plan.fails_at)], progress_seconds=0.0)
        self.stop = Stop()
        self.resumptions = 0
        self.driver: Coroutine
        # The faults that the test has caused, besides those of messages and tasks.
        self.injected: set[str] = set()
        groups = (WorkerGroup(plan.workers, {"CPU": 1}),) * plan.groups
        experiment = SimpleNamespace(server_node=None, placement="pack", server_shards=1, data_on_nodes=False)
        experiment.__dict__.update(threads_per_worker=1, device="cpu", vmap_batch=1, seed=0)
        if plan.is_far:
            experiment.server_node = FAR
        self.spec = SimpleNamespace(
            experiment=experiment,
            evaluation_data=None,
            data=SimpleNamespace(source=None),
            make_start=lambda directory, resumed: SimpleNamespace(),
        )
        self.spec.without_training_rows = lambda: self.spec
        self.setting = Setting(
            blocks=Blocks(10 * np.arange(CLIENTS + 1), np.zeros(0, np.int64), []),
            groups=groups,
            group_of=np.arange(CLIENTS) % plan.groups,
            driver="driver",
            description={},
            label="run",
            fingerprint=None,
            audience=Audience(self.callbacks.subscribed, self.callbacks.blocking),
            heartbeat=Heartbeat(every=1.0, bound=10.0, far=12.0, starts=15.0),
        )
        Stage.simulation = self.simulation
        Stage.run = self
        self._drive(resume=False)

    def _drive(self, resume: bool) -> None:
        self.callbacks.start(SimpleNamespace())
        function = partial(
            engine._run_on_cluster, self.spec, self.disk, self.callbacks, self.stop, resume=resume, extend=False
        )
        self.driver = start_coroutine(self.simulation, function)

    # Faults.

    def advance(self, seconds: float) -> None:
        """Let time pass, and continue the run if it has ended with an error."""
        self.simulation.block(lambda: self.driver.is_done, seconds)
        self._continue()

    def actors(self, kind: type) -> list[Any]:
        return [actor for actor in self.simulation.actors if isinstance(actor, kind)]

    def kill(self, kind: type) -> None:
        actors = self.actors(kind)
        if actors:
            self.injected.add("kill")
            self.rng.choice(actors).die()

    def freeze(self, kind: type, seconds: float) -> None:
        actors = [actor for actor in self.actors(kind) if actor.is_started]
        if actors:
            self.injected.add("freeze")
            self.rng.choice(actors).freeze(seconds)

    def kill_node(self, name: str) -> None:
        if self.simulation.nodes_of[name].is_alive:
            self.injected.add("node")
            self.simulation.kill_node(name)

    def join_node(self, name: str) -> None:
        if not self.simulation.nodes_of[name].is_alive:
            self.simulation.join_node(name)

    def lose_cluster(self) -> None:
        self.injected.add("cluster")
        self.simulation.is_lost = True
        for actor in list(self.simulation.actors):
            actor.die()

    def ask_to_stop(self) -> None:
        self.injected.add("stop")
        self.stop.set()

    # The end.

    def finish(self) -> None:
        """Stop the faults, let the run end, and check its result."""
        self.simulation.faults = Faults(max_delay_s=0.05)
        for name in (FAR, OTHER):
            self.join_node(name)
        self.stop.clear()
        began = self.simulation.now
        for _ in range(MAX_RESUMPTIONS):
            self.simulation.block(lambda: self.driver.is_done, END_S)
            if not self._continue():
                break
        assert self.driver.is_done, f"no end within {self.simulation.now - began:.0f} s"
        self.check()

    def _continue(self) -> bool:
        """Resume the run if it has ended early. Return True if it was resumed."""
        driver = self.driver
        if not driver.is_done:
            return False
        if driver.error is None:
            if driver.result:
                return False
            assert "stop" in self.injected, "the run stopped without a request"
        elif isinstance(driver.error, CallbackRaised):
            assert self.plan.fails_at is not None
        elif not isinstance(driver.error, ENDS) or not self.injected | self._severe():
            raise driver.error
        self.resumptions += 1
        self.simulation.is_lost = False
        self.stop.clear()
        self._drive(resume=True)
        return True

    def _severe(self) -> set[str]:
        """Return the names of the faults of tasks and messages that may end or restart a run.

        If many messages are lost, so many successive pings may be lost that an actor counts as frozen.
        """
        names = {name for name in ("deaths", "freezes") if getattr(self.faults, name)}
        if self.faults.lost > MAX_HARMLESS_LOSS or (
            self.faults.lost and self.faults.max_retries < MIN_HARMLESS_RETRIES
        ):
            names.add("lost")
        return names

    def check(self) -> None:
        assert self.simulation.violations == []
        expected = undisturbed(self.plan)
        final = self.disk.states[-1]
        assert final["model"].tobytes() == expected["model"].tobytes(), "other bits"
        assert final["log"] == expected["log"], "another log"
        assert self.recorder.events == expected["told"], "other events of the callbacks"
        if not self.injected and not self._severe() and self.plan.fails_at is None:
            assert self.recorder.starts == 1, "a restart without a death"
        self.simulation.block(lambda: False, 5.0)
        assert self.simulation.actors == [], "actors are left"

    def close(self) -> None:
        end_coroutines(self.simulation)


_expected: dict[int | None, dict[str, Any]] = {}


def undisturbed(plan: Plan) -> dict[str, Any]:
    """Return the final state of the run without Ray, and the events that its callbacks receive."""
    if plan.ends_at not in _expected:
        recorder = Recorder()
        disk = Disk()
        callbacks = CallbackList([recorder, Stopper(plan.ends_at, None)])
        assert Session(None, disk, Direct(), threading.Event(), callbacks).execute(resume=False)
        _expected[plan.ends_at] = {**disk.states[-1], "told": recorder.events}
    return _expected[plan.ends_at]


def play(seed: int) -> SimulatedRun:
    """Execute the run with this seed, and check its result."""
    rng = np.random.default_rng(seed)

    def choose(*values: Any) -> Any:
        return values[int(rng.integers(len(values)))]

    faults = Faults(
        lost=choose(0.0, 0.0, 0.05, 0.3),
        copied=choose(0.0, 0.0, 0.1),
        deaths=choose(0.0, 0.0, 0.1),
        freezes=choose(0.0, 0.0, 0.0, 0.1),
        unbegun=choose(0.0, 0.0, 0.0, 0.02),
        max_retries=choose(20, 20, 20, 1),
        max_delay_s=choose(0.02, 0.5),
    )
    plan = Plan(
        is_far=choose(False, True),
        workers=choose(1, 2, 3),
        groups=choose(1, 1, 2),
        ends_at=choose(None, None, 10),
        fails_at=choose(None, None, None, 5),
    )
    run = SimulatedRun(seed, faults, plan)
    try:
        for _ in range(choose(0, 1, 2, 3)):
            run.advance(float(rng.exponential(4.0)))
            DISTURBANCES[int(rng.integers(len(DISTURBANCES)))](run)
        run.finish()
    finally:
        run.close()
    return run


DISTURBANCES = (
    lambda run: run.kill(SimulatedWorker),
    lambda run: run.kill(SimulatedWorker),
    lambda run: run.kill(HostActor),
    lambda run: run.freeze(SimulatedWorker, 1e9),
    lambda run: run.freeze(SimulatedWorker, 4.0),
    lambda run: run.freeze(HostActor, 1e9),
    lambda run: run.freeze(HostActor, 3.0),
    lambda run: run.kill_node(FAR),
    lambda run: run.join_node(FAR),
    lambda run: run.lose_cluster(),
    lambda run: run.ask_to_stop(),
)
