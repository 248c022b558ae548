"""Actors of the simulated Ray: their places on nodes, their calls, and their deaths."""

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

from coroutines import current, start_coroutine
from ray.exceptions import ActorDiedError, ActorUnavailableError
from simulated_ray import Node, Ref, SimulatedRay, copy_value

# Ray repeats a lost call after about a second.
RETRY_S = 1.0
# The longest time from the placement of an actor to its first call.
MAX_START_S = 2.0
# The names of the concurrency groups. Pings have a separate group, so that they do not wait for other calls.
DEFAULT, PING = "", "ping"


@dataclass(eq=False)
class Message:
    """A call of an actor's method, its reference to the result, and the number of retries that remain."""

    method: str
    args: tuple[Any, ...]
    ref: Ref
    retries: int


@dataclass(eq=False)
class SimulatedActor:
    """An actor. Each of its concurrency groups executes a limited number of calls at a time."""

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
    _idle_since: float = 0.0

    def __getattr__(self, method: str) -> Any:
        if method.startswith("_"):
            raise AttributeError(method)
        return SimpleNamespace(remote=lambda *args: self._send(method, args))

    def group_of(self, method: str) -> tuple[str, int]:
        """Return the concurrency group of a method, and the number of calls that the group executes at a time."""
        if method == "ping":
            return PING, 1
        return DEFAULT, 1

    def begin(self, message: Message) -> None:
        """Begin to execute a call. `finish` ends the call."""
        raise NotImplementedError

    @property
    def is_frozen(self) -> bool:
        return self.frozen_until > self.simulation.now

    def freeze(self, seconds: float) -> None:
        """Stop the actor for some time."""
        self.frozen_until = max(self.frozen_until, self.simulation.now + seconds)
        # At this time the actor's coroutines continue.
        self.simulation.at(self.frozen_until, lambda: None)

    def place(self) -> None:
        """Place the actor on a node with enough free cores, if there is one."""
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
        """End the actor and the actors that it has created. Its open calls fail."""
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
        """Answer a call and begin the next one. A frozen actor does so when its freeze ends."""
        if self.is_dead:
            return
        if self.is_frozen:
            self.simulation.at(self.frozen_until, lambda: self.finish(message, value, error))
            return
        self._answer(message, value, error)
        group, _ = self.group_of(message.method)
        self._busy[group] -= 1
        if group == DEFAULT:
            self._idle_since = self.simulation.now
        self._begin_next(group)

    def idle_s(self) -> float:
        """Return for how many seconds the actor has executed no call of the default group."""
        if self._busy.get(DEFAULT):
            return 0.0
        return self.simulation.now - self._idle_since

    def _start(self) -> None:
        self.is_started = True
        self._idle_since = self.simulation.now
        for group in list(self._inboxes):
            self._begin_next(group)

    def _send(self, method: str, args: tuple[Any, ...]) -> Ref:
        current().check_alive()
        message = Message(method, tuple(map(copy_value, args)), Ref(), self.simulation.faults.max_retries)
        self.open.append(message)
        self._post(message)
        return message.ref

    def _post(self, message: Message) -> None:
        """Send a message. If it is lost, Ray sends it again."""
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
                self.finish(message, (self.node.name, 0, self.idle_s()))
            else:
                self.begin(message)

    def _answer(self, message: Message, value: Any, error: Exception | None) -> None:
        """Send the answer. If the answer is lost, Ray repeats the call, and the actor executes it again."""
        if self.simulation.happens(self.simulation.faults.lost):
            self._repeat(message)
            return
        if message in self.open:
            self.open.remove(message)
        self.simulation.after(self.simulation.delay(), lambda: message.ref.settle(value, error))


@dataclass(eq=False)
class HostActor(SimulatedActor):
    """An actor that executes the methods of an object, each call in a coroutine."""

    make: Callable[[], Any] | None = None
    groups: dict[str, tuple[str, int]] = field(default_factory=dict)
    concurrency: int = 1
    _host: Any = None

    def group_of(self, method: str) -> tuple[str, int]:
        if method in self.groups:
            return self.groups[method]
        if method == "ping":
            return PING, 1
        return DEFAULT, self.concurrency

    def begin(self, message: Message) -> None:
        start_coroutine(self.simulation, lambda: self._call(message), self)

    def _call(self, message: Message) -> None:
        if self._host is None:
            self._host = self.make()
        value = error = None
        try:
            value = getattr(self._host, message.method)(*message.args)
        # The method may raise any exception. The caller receives the exception.
        except Exception as raised:
            error = raised
        current().check_alive()
        self.finish(message, copy_value(value), error)
