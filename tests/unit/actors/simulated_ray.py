"""A simulation of Ray in one process: nodes, time, messages and objects.

The seed decides how long messages and tasks take, which messages are lost, repeated or late, and which workers die or
freeze. The simulation replaces the functions of `actors.runtime`, and only the calls that `actors` makes are simulated.
Code that waits runs in coroutines, of which one runs at a time.
"""

import heapq
import math
import pickle
import random
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import count
from typing import TYPE_CHECKING, Any
from unittest import mock

import numpy as np
from coroutines import current, run_others

from actors import runtime

if TYPE_CHECKING:
    from simulated_actors import SimulatedActor

# The id of the node of the driver. Ray accepts only hexadecimal ids of this length.
HERE = "0" * 56
# No wait in a run takes longer than this many simulated seconds.
PATIENCE_S = 10_000.0
FOREVER_S = 1e9


@dataclass(frozen=True)
class Faults:
    """The faults of a simulation.

    Attributes:
        lost: Probability that a request or an answer is lost.
        copied: Probability that a request arrives twice.
        unbegun: Probability that a worker's call with a reference as argument never begins.
        deaths: Probability that a worker dies in a task.
        freezes: Probability that a worker freezes in a task.
        max_retries: Number of times that Ray repeats a lost call.
        max_delay_s: Longest delay of a message.
        max_copy_delay_s: Longest delay of the second copy of a request.
        freeze_s: Possible durations of a freeze.
    """

    lost: float = 0.0
    copied: float = 0.0
    unbegun: float = 0.0
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
        raise TypeError("a reference must be an argument of the call, not a part of an argument")

    def settle(self, value: Any, error: Exception | None = None) -> None:
        if not self.is_ready:
            self.is_ready = True
            self.value = value
            self.error = error


@dataclass(eq=False)
class Node:
    """A node of the cluster. `free` is the number of cores that no actor uses."""

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
        # The tasks in which a worker has died or frozen.
        self.disturbed: set[int] = set()
        # Sentences about calls that lose work or cannot succeed, although the run may have the right result.
        self.violations: list[str] = []
        # While the cluster is lost, new actors do not start.
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
        """Run other coroutines and let time pass until the condition holds, but at most for `seconds`."""
        coroutine = current()
        coroutine.check_alive()
        if is_over():
            return
        until = self.now + seconds
        if seconds > 0:
            # If the sum is rounded to `now`, no time would pass.
            until = max(until, math.nextafter(self.now, math.inf))
        coroutine.wait_for(is_over, until)
        run_others(self)
        coroutine.check_alive()

    def act(self, until: float) -> None:
        """Execute the next event. If there is none before `until`, set the time to `until`."""
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
        ref.settle(copy_value(value))
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
        """Add an actor. It starts when a node has enough free cores, and dies with the actor that created it."""
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
    """A condition between coroutines. It needs no lock, because other coroutines run only in `wait_for`."""

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


def copy_value(value: Any) -> Any:
    """Return a copy of arrays and lists, as in the object store or a message: later changes have no effect on it."""
    if isinstance(value, np.ndarray | list):
        return pickle.loads(pickle.dumps(value, 5))
    return value


class Stage:
    """The current simulation, which `actors.runtime` uses, and its run."""

    simulation: SimulatedRay
    run: Any


@contextmanager
def simulated_runtime() -> Iterator[type[Stage]]:
    """Let `actors.runtime` use `Stage.simulation`."""

    def forward(method: str) -> Callable[..., Any]:
        return lambda *args, **options: getattr(Stage.simulation, method)(*args, **options)

    names = ("get", "kill", "monotonic", "node_id", "nodes", "put", "resources", "sleep", "wait")
    replaced = {name: forward(name) for name in names}
    with mock.patch.multiple(runtime, Lock=forward("lock"), Condition=forward("condition"), **replaced):
        yield Stage
