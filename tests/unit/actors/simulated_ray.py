"""A simulation of Ray: nodes, actors, messages and time, in one process.

One seed is one interleaving: it decides how long messages and tasks take, which messages are lost, repeated or late,
and which workers die or freeze. It replaces the names of `actors.runtime`. Code that waits runs in coroutines, of which
one runs at a time. Only the calls that the Ray layer makes are simulated.
"""

import heapq
import math
import pickle
import random
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from itertools import count
from types import SimpleNamespace
from typing import Any
from unittest import mock

import numpy as np
from coroutines import current, run_others, start_coroutine
from ray.exceptions import ActorDiedError, ActorUnavailableError

from actors import runtime
from fedraa.messages import Evaluation, Task, Update, Vector
from fedraa.objectives import MetricSpec

# The id of the node of the driver; Ray accepts only hexadecimal ids of this length.
HERE = "0" * 56
# Ray repeats a lost call after about a second.
RETRY_S = 1.0
# No wait of a run is longer, in simulated seconds.
PATIENCE_S = 10_000.0
# The time from the placement of an actor to its first call.
MAX_START_S = 2.0
# The concurrent calls of each concurrency group.
DEFAULT, PULSE = "", "pulse"
FOREVER_S = 1e9


@dataclass(frozen=True)
class Faults:
    """Probabilities per message or task, and seconds."""

    lost: float = 0.0
    copied: float = 0.0
    deaths: float = 0.0
    freezes: float = 0.0
    max_retries: int = 20
    max_delay_s: float = 0.5
    max_copy_delay_s: float = 20.0
    freeze_s: tuple[float, ...] = (5.0, FOREVER_S)


class Ref:
    """A reference to an object that exists or will exist."""

    __slots__ = ("error", "is_ready", "value")

    def __init__(self) -> None:
        self.is_ready = False
        self.value: Any = None
        self.error: Exception | None = None

    def __reduce__(self) -> tuple[Any, ...]:
        raise TypeError("a reference travels as an argument of its own")

    def settle(self, value: Any, error: Exception | None = None) -> None:
        if not self.is_ready:
            self.is_ready = True
            self.value = value
            self.error = error


@dataclass(eq=False)
class Node:
    """A node of the cluster. An actor takes `num_cpus` of its cores."""

    name: str
    cpus: float
    is_alive: bool = True
    free: float = field(init=False)

    def __post_init__(self) -> None:
        self.free = self.cpus

    def describe(self) -> dict[str, Any]:
        resources = {"CPU": self.cpus, "memory": 1e9}
        return {
            "NodeID": self.name,
            "NodeName": self.name,
            "NodeManagerAddress": self.name,
            "Alive": self.is_alive,
            "Resources": resources,
        }


class SimulatedRay:
    """A stand-in for the functions of `actors.runtime`."""

    def __init__(self, seed: int, faults: Faults, nodes: Sequence[Node] = ()) -> None:
        self.now = 0.0
        self.rng = random.Random(seed)
        self.faults = faults
        self.disturbed: set[int] = set()
        # Sentences about calls that lose work or cannot succeed, although the run may end right.
        self.violations: list[str] = []
        # True while the cluster is lost: actors that it gets now do not start.
        self.is_lost = False
        self.actors: list[SimulatedActor] = []
        self.nodes_of = {node.name: node for node in nodes or (Node(HERE, math.inf),)}
        self._events: list[tuple[float, int, Callable[[], None]]] = []
        self._numbers = count()

    def after(self, seconds: float, act: Callable[[], None]) -> None:
        self.at(self.now + seconds, act)

    def at(self, time: float, act: Callable[[], None]) -> None:
        heapq.heappush(self._events, (time, next(self._numbers), act))

    def delay(self) -> float:
        return self.rng.random() * self.faults.max_delay_s

    def happens(self, probability: float) -> bool:
        return probability > 0 and self.rng.random() < probability

    def block(self, is_over: Callable[[], bool], seconds: float = PATIENCE_S) -> None:
        """Let time and other coroutines pass until the condition holds, at most for this long."""
        coroutine = current()
        coroutine.check_alive()
        if is_over():
            return
        until = self.now + seconds
        if seconds > 0:
            # A sum that is rounded to the present would let no time pass.
            until = max(until, math.nextafter(self.now, math.inf))
        coroutine.wait_for(is_over, until)
        run_others(self)
        coroutine.check_alive()

    def act(self, until: float) -> None:
        """Make the next event, or let the time pass if there is none before this time."""
        if self._events and self._events[0][0] <= until:
            self.now, _, act = heapq.heappop(self._events)
            act()
        else:
            self.now = until

    # The functions of `actors.runtime`.

    def monotonic(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.block(lambda: False, seconds)

    def put(self, value: Any) -> Ref:
        current().check_alive()
        ref = Ref()
        ref.settle(_copy(value))
        return ref

    def get(self, ref: Ref) -> Any:
        self.block(lambda: ref.is_ready)
        assert ref.is_ready, "a run waits forever"
        if ref.error is not None:
            raise ref.error
        return ref.value

    def wait(self, refs: Sequence[Ref], *, timeout: float, num_returns: int = 1) -> tuple[list[Ref], list[Ref]]:
        self.block(lambda: sum(ref.is_ready for ref in refs) >= num_returns, timeout)
        ready = [ref for ref in refs if ref.is_ready][:num_returns]
        return ready, [ref for ref in refs if ref not in ready]

    def kill(self, actor: "SimulatedActor") -> None:
        current().check_alive()
        actor.die()

    def node_id(self) -> str:
        return HERE

    def nodes(self) -> list[dict[str, Any]]:
        return [node.describe() for node in self.nodes_of.values()]

    def resources(self) -> dict[str, float]:
        return {"CPU": sum(node.cpus for node in self.nodes_of.values() if node.is_alive)}

    def lock(self) -> "SimulatedLock":
        return SimulatedLock(self)

    def condition(self) -> "SimulatedCondition":
        return SimulatedCondition(self)

    # Actors and nodes.

    def create(self, actor: "SimulatedActor") -> "SimulatedActor":
        """Add an actor, which starts when a node has room for it. It ends with the actor that created it."""
        actor.owner = current().actor
        actor.is_dead = self.is_lost
        if actor.is_dead:
            return actor
        if actor.bound_to is not None and not self.nodes_of[actor.bound_to].is_alive:
            self.violations.append("an actor is bound to a dead node")
        self.actors.append(actor)
        self.after(self.delay(), self.place_actors)
        return actor

    def place_actors(self) -> None:
        for actor in self.actors:
            if actor.node is None and not actor.is_dead:
                actor.place()

    def kill_node(self, name: str) -> None:
        self.nodes_of[name].is_alive = False
        for actor in list(self.actors):
            if actor.node is self.nodes_of[name]:
                actor.die()

    def join_node(self, name: str) -> None:
        self.nodes_of[name] = Node(name, self.nodes_of[name].cpus)
        self.place_actors()


@dataclass
class SimulatedLock:
    """A lock between coroutines."""

    simulation: SimulatedRay
    is_held: bool = False

    def __enter__(self) -> None:
        self.simulation.block(lambda: not self.is_held)
        self.is_held = True

    def __exit__(self, *error: object) -> None:
        self.is_held = False


@dataclass
class SimulatedCondition:
    """A condition between coroutines. A coroutine that holds it is interrupted only in `wait_for`."""

    simulation: SimulatedRay

    def __enter__(self) -> None:
        pass

    def __exit__(self, *error: object) -> None:
        pass

    def notify_all(self) -> None:
        pass

    def wait_for(self, is_over: Callable[[], bool], timeout: float | None = None) -> bool:
        self.simulation.block(is_over, PATIENCE_S if timeout is None else timeout)
        return is_over()


@dataclass(eq=False)
class Message:
    """A call on its way."""

    method: str
    args: tuple[Any, ...]
    ref: Ref
    retries: int


@dataclass(eq=False)
class SimulatedActor:
    """An actor. Each of its concurrency groups makes a number of calls at a time, and pings have their own group."""

    simulation: SimulatedRay
    needs: float = 0.0
    bound_to: str | None = None
    owner: "SimulatedActor | None" = None
    node: Node | None = None
    is_dead: bool = False
    is_started: bool = False
    frozen_until: float = 0.0
    open: list[Message] = field(default_factory=list)
    _inboxes: dict[str, deque[Message]] = field(default_factory=dict)
    _busy: dict[str, int] = field(default_factory=dict)

    def __getattr__(self, method: str) -> Any:
        if method.startswith("_"):
            raise AttributeError(method)
        return SimpleNamespace(remote=lambda *args: self._send(method, args))

    def group_of(self, method: str) -> tuple[str, int]:
        """Return the concurrency group of a method, and the number of its concurrent calls."""
        if method == "ping":
            return PULSE, 1
        return DEFAULT, 1

    def begin(self, message: Message) -> None:
        """Begin a call. `finish` ends it."""
        raise NotImplementedError

    @property
    def is_frozen(self) -> bool:
        return self.frozen_until > self.simulation.now

    def freeze(self, seconds: float) -> None:
        """Let the actor do nothing for some time."""
        self.frozen_until = max(self.frozen_until, self.simulation.now + seconds)
        # Its coroutines continue at this time.
        self.simulation.at(self.frozen_until, lambda: None)

    def place(self) -> None:
        """Take a place on a node that has room."""
        nodes = self.simulation.nodes_of.values()
        fitting = [node for node in nodes if node.is_alive and node.free >= self.needs]
        if self.bound_to is not None:
            if not self.simulation.nodes_of[self.bound_to].is_alive:
                self.die()
                return
            fitting = [node for node in fitting if node.name == self.bound_to]
        if fitting:
            self.node = fitting[0]
            self.node.free -= self.needs
            self.simulation.after(MAX_START_S * self.simulation.rng.random(), self._start)

    def die(self) -> None:
        """End the actor, its calls, and the actors that it has created."""
        if self.is_dead:
            return
        simulation = self.simulation
        self.is_dead = True
        if self in simulation.actors:
            simulation.actors.remove(self)
        if self.node is not None:
            self.node.free += self.needs
            simulation.after(simulation.delay(), simulation.place_actors)
        for message in self.open:
            self._report_death(message)
        self.open.clear()
        for actor in list(simulation.actors):
            if actor.owner is self:
                actor.die()

    def finish(self, message: Message, value: Any, error: Exception | None = None) -> None:
        """End a call, as soon as the actor is not frozen, and begin the next one."""
        if self.is_dead:
            return
        if self.is_frozen:
            self.simulation.at(self.frozen_until, lambda: self.finish(message, value, error))
            return
        self._answer(message, value, error)
        group, _ = self.group_of(message.method)
        self._busy[group] -= 1
        self._begin_next(group)

    def _start(self) -> None:
        self.is_started = True
        for group in list(self._inboxes):
            self._begin_next(group)

    def _send(self, method: str, args: tuple[Any, ...]) -> Ref:
        current().check_alive()
        message = Message(method, tuple(map(_copy, args)), Ref(), self.simulation.faults.max_retries)
        self.open.append(message)
        self._post(message)
        return message.ref

    def _post(self, message: Message) -> None:
        """Send a message, which may be lost on the way. Ray then repeats it."""
        simulation = self.simulation
        if self.is_dead:
            self._report_death(message)
        elif simulation.happens(simulation.faults.lost):
            self._repeat(message)
        else:
            simulation.after(simulation.delay(), lambda: self._arrive(message))
            if simulation.happens(simulation.faults.copied):
                late = simulation.rng.random() * simulation.faults.max_copy_delay_s
                simulation.after(late, lambda: self._arrive(message))

    def _report_death(self, message: Message) -> None:
        self.simulation.after(self.simulation.delay(), lambda: message.ref.settle(None, ActorDiedError()))

    def _repeat(self, message: Message) -> None:
        message.retries -= 1
        if message.retries < 0:
            message.ref.settle(None, ActorUnavailableError("lost", None))
        else:
            self.simulation.after(RETRY_S, lambda: self._post(message))

    def _arrive(self, message: Message) -> None:
        group, _ = self.group_of(message.method)
        self._inboxes.setdefault(group, deque()).append(message)
        self._begin_next(group)

    def _begin_next(self, group: str) -> None:
        inbox = self._inboxes[group]
        while self.is_started and not self.is_dead and inbox:
            _, places = self.group_of(inbox[0].method)
            if self._busy.get(group, 0) >= places:
                return
            self._busy[group] = self._busy.get(group, 0) + 1
            message = inbox.popleft()
            if message.method == "ping":
                self.finish(message, (self.node.name, 0))
            else:
                self.begin(message)

    def _answer(self, message: Message, value: Any, error: Exception | None) -> None:
        """Send the answer. If the answer is lost, Ray repeats the call, which the actor makes again."""
        if self.simulation.happens(self.simulation.faults.lost):
            self._repeat(message)
            return
        if message in self.open:
            self.open.remove(message)
        self.simulation.after(self.simulation.delay(), lambda: message.ref.settle(value, error))


@dataclass(eq=False)
class SimulatedWorker(SimulatedActor):
    """A worker. It may die or freeze in a task, but not twice in the same task."""

    number: int = 0

    def begin(self, message: Message) -> None:
        simulation = self.simulation
        for task in _tasks_of(message):
            if task not in simulation.disturbed:
                simulation.disturbed.add(task)
                if simulation.happens(simulation.faults.deaths):
                    simulation.after(simulation.delay(), self.die)
                if simulation.happens(simulation.faults.freezes):
                    self.freeze(simulation.rng.choice(simulation.faults.freeze_s))
        simulation.after(simulation.rng.expovariate(2.0), lambda: self._end(message))

    def _end(self, message: Message) -> None:
        if not self.is_dead:
            self.finish(message, _make_call(message))


@dataclass(eq=False)
class HostActor(SimulatedActor):
    """An actor that makes the calls of an object, each in a coroutine."""

    make: Callable[[], Any] | None = None
    groups: dict[str, tuple[str, int]] = field(default_factory=dict)
    concurrency: int = 1
    _host: Any = None

    def group_of(self, method: str) -> tuple[str, int]:
        if method in self.groups:
            return self.groups[method]
        if method == "ping":
            return PULSE, 1
        return DEFAULT, self.concurrency

    def begin(self, message: Message) -> None:
        start_coroutine(self.simulation, lambda: self._call(message), self)

    def _call(self, message: Message) -> None:
        if self._host is None:
            self._host = self.make()
        value = error = None
        try:
            value = getattr(self._host, message.method)(*message.args)
        # The host may raise any exception, which travels to the caller.
        except Exception as raised:
            error = raised
        current().check_alive()
        self.finish(message, _copy(value), error)


def _copy(value: Any) -> Any:
    """Return the value as the object store or a message holds it: later changes of its arrays have no effect."""
    if isinstance(value, np.ndarray | list):
        return pickle.loads(pickle.dumps(value, 5))
    return value


def _tasks_of(message: Message) -> list[int]:
    if message.method != "train_all":
        return []
    return [job.header.id for job in message.args[0]]


def _make_call(message: Message) -> Any:
    if message.method == "started":
        return HERE
    if message.method == "evaluate":
        return evaluate(message.args[0].value)
    jobs, *refs = message.args
    return [train(replace(job.header, buffer=_values_of(job.buffer, refs))) for job in jobs]


def _values_of(buffer: Any, refs: Sequence[Ref]) -> Any:
    if isinstance(buffer, int):
        return refs[buffer].value
    return buffer


def train(task: Task) -> Update:
    """Return an update that depends on the task and its parameters, and on nothing else."""
    noise = np.sin(task.id + np.arange(task.size, dtype=np.float32))
    params = np.float32(0.9) * task.params + np.float32(0.1) * noise
    return Update(task.id, task.client, task.fragment, task.version, params, steps=1, loss=0.5, seconds=0.1)


def evaluate(params: Vector) -> Evaluation:
    return Evaluation(dict.fromkeys(MetricSpec().columns, float(np.abs(params).mean())))


class Stage:
    """The place of the simulation that `actors.runtime` uses now."""

    simulation: SimulatedRay


@contextmanager
def simulated_runtime() -> Iterator[type[Stage]]:
    """Let `actors.runtime` use the simulation that the stage has."""

    def forward(method: str) -> Callable[..., Any]:
        return lambda *args, **options: getattr(Stage.simulation, method)(*args, **options)

    names = ("get", "kill", "monotonic", "node_id", "nodes", "put", "resources", "sleep", "wait")
    replaced = {name: forward(name) for name in names}
    with mock.patch.multiple(runtime, Lock=forward("lock"), Condition=forward("condition"), **replaced):
        yield Stage
