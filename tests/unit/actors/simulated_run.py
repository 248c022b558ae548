"""A run on a simulated cluster: the driver's restarts, follower and placement, the server's relay and executor.

The driver is `actors.cluster.engine`, and the server is `ParameterServer` with a small session in place of training.
One seed is one interleaving. A run must end with the model and the events of a run without faults, within a bound
after the faults stop.
"""

import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, nullcontext
from copy import deepcopy
from dataclasses import dataclass
from functools import partial
from types import SimpleNamespace
from typing import Any
from unittest import mock

import numpy as np
from coroutines import Coroutine, end_coroutines, start_coroutine
from simulated_ray import (
    HERE,
    Faults,
    HostActor,
    Node,
    SimulatedRay,
    SimulatedWorker,
    Stage,
    evaluate,
    simulated_runtime,
    train,
)

from actors.cluster import engine, follower
from actors.cluster.follower import ClusterLost
from actors.pool import executor, pulse
from actors.pool.pulse import Heartbeat
from actors.pool.serializer import Blocks
from actors.server import parameter_server
from actors.server.parameter_server import RUN, ParameterServer, Setting
from actors.server.relay import Audience, Relay
from actors.worker.worker import Worker
from fedraa.callbacks import Callback
from fedraa.callbacks.callback_list import CallbackList
from fedraa.devices.worker_groups import WorkerGroup
from fedraa.engine.stop_signals import Stop
from fedraa.errors import CallbackRaised, InputError, RunFailed
from fedraa.messages import Fault, Task, Update

CLIENTS, STEPS, SIZE = 3, 12, 3
CHECKPOINT_EVERY, EVAL_EVERY = 4, 5
# At this step a task is cancelled, and its client gets another one.
CANCEL_AT = 7
MAX_ATTEMPTS = 4
POLL_S = 1.0
# A run ends within this many simulated seconds after the last fault.
END_S = 400.0
MAX_RESUMPTIONS = 4
# With this share of lost messages, no seed loses ten pings in a row.
MAX_HARMLESS_LOSS = 0.05
MIN_HARMLESS_RETRIES = 10
FAR = "1" * 56
OTHER = "2" * 56
# The errors that end a run under faults. Each of them has a command that continues the run.
ENDS = (RunFailed, ClusterLost, InputError, KeyboardInterrupt)


class Disk:
    """The checkpoints of a run directory, the newest last. It stands for the directory in the driver's code."""

    def __init__(self) -> None:
        self.states: list[dict[str, Any]] = []
        self.is_over = self.is_written = False

    def save(self, state: dict[str, Any]) -> None:
        self.is_written = True
        self.states = [*self.states[-1:], deepcopy(state)]

    def resolve(self) -> "Disk":
        return self

    def __truediv__(self, name: str) -> "Disk":
        return self

    def exists(self) -> bool:
        return bool(self.states)

    def newest_first(self) -> list[str]:
        return [f"step {state['step']}" for state in reversed(self.states)]

    def fill_new(self, files: tuple[list[dict[str, Any]], bool]) -> None:
        """Write the files to a directory in which no run has written."""
        if self.is_written:
            Stage.simulation.violations.append("old files replace those of the run")
        self.fill(files)

    def fill(self, files: tuple[list[dict[str, Any]], bool]) -> None:
        states, self.is_over = files
        self.states = list(states)


class Sync:
    """The copy of a remote server's directory."""

    def __init__(self, disk: Disk) -> None:
        self._disk = disk
        self.seen = 0

    def read(self) -> tuple[list[dict[str, Any]], bool]:
        return self._disk.states, self._disk.is_over

    def apply(self, changes: tuple[list[dict[str, Any]], bool]) -> None:
        self._disk.fill(changes)


class Session:
    """A run in place of training. Every commit depends on all commits before it, and on their order."""

    def __init__(self, spec: Any, disk: Disk, pool: Any, stop: threading.Event, relay: Any, **options: Any) -> None:
        self._disk = disk
        self._pool = pool
        self._stop = stop
        self._relay = relay
        self._attempts: dict[int, int] = {}
        self.faults = 0
        self._state: dict[str, Any] = {"step": 0, "next": 0, "now": 0.0, "log": [], "by": None, "evaluated": 0}
        self._state |= {"model": np.zeros(SIZE, np.float32), "tasks": {}, "waiting": list(range(CLIENTS))}

    def execute(self, *, resume: bool) -> bool:
        if self._disk.states and not resume:
            Stage.simulation.violations.append("the run begins again, although it has a checkpoint")
        if resume and self._disk.states:
            self._state = deepcopy(self._disk.states[-1])
            for event in self._state["log"]:
                self._relay.tell(event, past=True)
            for task, due in self._state["tasks"].values():
                self._pool.submit(task, due)
        if self._disk.is_over:
            return True
        state = self._state
        while state["step"] < STEPS and state["by"] is None:
            if self._stop.is_set():
                self._disk.save(state)
                return False
            self._take_step()
        self._disk.save(state)
        self._disk.is_over = True
        return True

    def _take_step(self) -> None:
        state = self._state
        if state["step"] % EVAL_EVERY == 0 and state["evaluated"] < state["step"]:
            self._evaluate()
            return
        for client in state["waiting"]:
            self._dispatch(client)
        state["waiting"].clear()
        if state["step"] % CHECKPOINT_EVERY == 0 and not any(s["step"] == state["step"] for s in self._disk.states):
            self._disk.save(state)
        head = min(state["tasks"], key=lambda number: (state["tasks"][number][1], number))
        outcome = self._pool.wait(head, POLL_S)
        if isinstance(outcome, Fault):
            self._send_again(outcome)
        elif outcome is not None:
            assert outcome.task == head, "the outcome of another task"
            self._commit(outcome)

    def _dispatch(self, client: int) -> None:
        state = self._state
        number = state["next"]
        state["next"] += 1
        due = state["now"] + 1 + 0.37 * client
        task = Task(number, client, number, 0, state["step"], state["step"], (), state["model"].copy(), 0.1, 1.0)
        state["tasks"][number] = (task, due)
        self._pool.submit(task, due)

    def _send_again(self, fault: Fault) -> None:
        self.faults += 1
        if fault.task is None:
            return
        task, due = self._state["tasks"][fault.task]
        self._attempts[fault.task] = self._attempts.get(fault.task, 0) + 1
        if self._attempts[fault.task] == MAX_ATTEMPTS:
            raise RunFailed("task", fault.error)
        self._pool.submit(task, due)

    def _commit(self, update: Update) -> None:
        state = self._state
        task, state["now"] = state["tasks"].pop(update.task)
        state["model"] = np.float32(0.8) * state["model"] + np.float32(0.2) * update.params
        state["step"] += 1
        state["waiting"].append(task.client)
        self._tell({"kind": "commit", "task": update.task, "step": state["step"]})
        if state["step"] == CANCEL_AT:
            number = max(state["tasks"])
            self._pool.cancel(number)
            state["waiting"].append(state["tasks"].pop(number)[0].client)

    def _evaluate(self) -> None:
        state = self._state
        pending = self._pool.evaluate(state["model"], {})
        result = None
        while result is None:
            if self._stop.is_set():
                return
            result = pending.result(POLL_S)
        state["evaluated"] = state["step"]
        self._tell({"kind": "eval", "step": state["step"], "t": state["now"], **result.metrics})

    def _tell(self, event: dict[str, Any]) -> None:
        self._state["log"].append(event)
        self._state["by"] = self._relay.tell(event) or self._state["by"]


class Direct:
    """An executor without workers."""

    def __init__(self) -> None:
        self._tasks: dict[int, Task] = {}

    def submit(self, task: Task, due: float) -> None:
        self._tasks[task.id] = task

    def wait(self, task: int, timeout: float) -> Update:
        return train(self._tasks.pop(task))

    def cancel(self, task: int) -> None:
        del self._tasks[task]

    def evaluate(self, params: Any, kept: Any) -> Any:
        return SimpleNamespace(result=lambda timeout: evaluate(params))


class Server(ParameterServer):
    """The server without libraries and files."""

    def __init__(self, spec: Any, directory: Disk | None, setting: Setting) -> None:
        self._directory = directory or Disk()
        self._spec = spec
        self._setting = setting
        self._relay = Relay(CallbackList(), setting.audience)
        self._executor = None
        self._stop = threading.Event()
        self._filling = threading.Lock()
        self._filled = False
        self._outcome = None

    def is_saving(self) -> bool:
        return False


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
    """A callback for which the run waits. It ends the run at an evaluation, or fails there once."""

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
    """The choices of a run that are no faults."""

    is_far: bool = False
    workers: int = 2
    ends_at: int | None = None
    fails_at: int | None = None
    groups: int = 1


class SimulatedRun:
    """A run on a simulated cluster of two nodes besides the driver's."""

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
        # What has been injected besides lost and late messages.
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
            limits=None,
            metric_spec=None,
            method=SimpleNamespace(asynchronous=True),
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
        function = partial(engine._on_cluster, self.spec, self.disk, self.callbacks, resume, self.stop)
        self.driver = start_coroutine(self.simulation, function)

    # Faults.

    def advance(self, seconds: float) -> None:
        """Let time pass. A run that has ended with an error is continued."""
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

        If many messages are lost, so many pings in a row may be lost that an actor counts as frozen.
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


class _ActorClass:
    """A stand-in for an actor class with options."""

    def __init__(self, kind: type) -> None:
        self._kind = kind
        self._options: dict[str, Any] = {}

    def options(self, **options: Any) -> "_ActorClass":
        self._options = options
        return self

    def remote(self, *args: Any) -> Any:
        simulation = Stage.simulation
        needs = self._options.get("num_cpus", 0)
        node = getattr(self._options.get("scheduling_strategy"), "node_id", None)
        if self._kind is Worker:
            return simulation.create(SimulatedWorker(simulation, needs, node, number=args[0]))
        args = tuple(arg.value if hasattr(arg, "is_ready") else arg for arg in args)
        actor = HostActor(simulation, needs, node, make=partial(Server, *args), groups={"execute": (RUN, 1)})
        actor.concurrency = self._options["max_concurrency"]
        return simulation.create(actor)


class _Watch:
    """The health check of the simulated cluster."""

    def __init__(self, *args: Any) -> None:
        self._run = Stage.run

    def lost(self) -> str | None:
        return "Ray's GCS died" if self._run.simulation.is_lost else None

    confirm_lost = lost


@contextmanager
def simulated_cluster() -> Iterator[None]:
    """Replace what is no part of the simulation: files, the machine's load, and Ray's handling of classes."""
    forwarded = SimpleNamespace(
        monotonic=lambda: Stage.simulation.now, sleep=lambda seconds: Stage.simulation.sleep(seconds)
    )
    with ExitStack() as stack:
        stack.enter_context(simulated_runtime())
        for module in (executor, engine):
            stack.enter_context(mock.patch.object(module, "actor_class", lambda kind, groups=None: _ActorClass(kind)))
        stack.enter_context(mock.patch.object(executor, "make_worker_spec", return_value=None))
        no_cpu_time = {"knows_cpu_seconds": lambda: True, "cpu_seconds": lambda process: 0.0}
        stack.enter_context(mock.patch.multiple(pulse, load_factor=lambda: 1.0, **no_cpu_time))
        stack.enter_context(mock.patch.object(follower, "load_factor", return_value=1.0))
        stack.enter_context(
            mock.patch.multiple(
                engine,
                time=forwarded,
                cluster_address=lambda experiment: "far:6379" if Stage.run.plan.is_far else None,
                ClusterWatch=_Watch,
                HeadWatch=_Watch,
                Need=SimpleNamespace(of=lambda spec: SimpleNamespace(server=0.0)),
                carry_by_value=lambda parts: None,
                RunStart=lambda *args: SimpleNamespace(),
                RunDirSync=Sync,
                register_writer=lambda directory: nullcontext(),
                newest_first=Disk.newest_first,
                is_written=lambda path: False,
                resume_command=lambda spec, directory: "fedraa resume run",
                _make_setting=lambda spec, directory, callbacks: Stage.run.setting,
            )
        )
        stack.enter_context(mock.patch.object(engine.ray, "is_initialized", return_value=True))
        stack.enter_context(
            mock.patch.multiple(
                parameter_server,
                RunSession=Session,
                write_all=Disk.fill_new,
                read_changes=lambda disk, seen: (list(disk.states), disk.is_over),
            )
        )
        yield


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
