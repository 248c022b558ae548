"""A simulation of Ray and of worker actors in one thread, with simulated time.

One seed is one interleaving: it decides how long messages and tasks take, which messages are lost, and which workers
die or freeze. Only the calls that the executor and the liveness probes make are simulated.
"""

import heapq
from collections import deque
from collections.abc import Callable, Sequence
from copy import deepcopy
from dataclasses import dataclass, field, replace
from itertools import count
from types import SimpleNamespace
from typing import Any

import numpy as np
import ray
from ray.exceptions import ActorDiedError, ActorUnavailableError

from fedraa.messages import Evaluation, Task, Update, Vector
from fedraa.objectives import MetricSpec

HERE = "here"
# Ray repeats a lost call after about a second.
RETRY_S = 1.0
# No wait of a run is longer, in simulated seconds.
PATIENCE_S = 10_000.0


@dataclass(frozen=True)
class Faults:
    """Probabilities per message or task, and seconds."""

    lost: float = 0.0
    deaths: float = 0.0
    freezes: float = 0.0
    max_retries: int = 20
    max_delay_s: float = 0.5
    freeze_s: tuple[float, ...] = (5.0, 1e9)


class Ref:
    """A reference to an object that exists or will exist."""

    def __init__(self) -> None:
        self.is_ready = False
        self.value: Any = None
        self.error: Exception | None = None

    def settle(self, value: Any, error: Exception | None = None) -> None:
        if not self.is_ready:
            self.is_ready = True
            self.value = value
            self.error = error


class SimulatedRay:
    """A stand-in for the modules `ray` and `time`."""

    remote = staticmethod(ray.remote)

    def __init__(self, seed: int, faults: Faults) -> None:
        self.now = 0.0
        self.rng = np.random.default_rng(seed)
        self.faults = faults
        self.disturbed: set[int] = set()
        self._events: list[tuple[float, int, Callable[[], None]]] = []
        self._numbers = count()

    def after(self, seconds: float, act: Callable[[], None]) -> None:
        heapq.heappush(self._events, (self.now + seconds, next(self._numbers), act))

    def delay(self) -> float:
        return float(self.rng.uniform(0, self.faults.max_delay_s))

    def happens(self, probability: float) -> bool:
        return bool(self.rng.random() < probability)

    # The functions of `time`.

    def monotonic(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self._advance(seconds, lambda: False)

    # The functions of `ray`.

    def put(self, value: Any) -> Ref:
        ref = Ref()
        ref.settle(_copy_arrays(value))
        return ref

    def get(self, ref: Ref) -> Any:
        self._advance(PATIENCE_S, lambda: ref.is_ready)
        assert ref.is_ready, "a run waits forever"
        if ref.error is not None:
            raise ref.error
        return ref.value

    def wait(self, refs: Sequence[Ref], *, timeout: float, num_returns: int = 1) -> tuple[list[Ref], list[Ref]]:
        self._advance(timeout, lambda: sum(ref.is_ready for ref in refs) >= num_returns)
        ready = [ref for ref in refs if ref.is_ready][:num_returns]
        return ready, [ref for ref in refs if ref not in ready]

    def kill(self, actor: "SimulatedWorker") -> None:
        actor.die()

    def get_runtime_context(self) -> Any:
        return SimpleNamespace(get_node_id=lambda: HERE)

    def _advance(self, seconds: float, is_over: Callable[[], bool]) -> None:
        """Let time pass until the condition holds, at most for this long."""
        end = self.now + seconds
        while not is_over():
            if not self._events or self._events[0][0] > end:
                self.now = end
                return
            self.now, _, act = heapq.heappop(self._events)
            act()


@dataclass(eq=False)
class Message:
    """A call on its way."""

    method: str
    args: tuple[Any, ...]
    ref: Ref
    retries: int


@dataclass(eq=False)
class SimulatedWorker:
    """A worker actor. It makes one call after another, and answers pings meanwhile."""

    simulation: SimulatedRay
    number: int
    is_dead: bool = False
    frozen_until: float = 0.0
    _inbox: deque[Message] = field(default_factory=deque)
    _open: list[Message] = field(default_factory=list)
    _is_busy: bool = False

    def __getattr__(self, method: str) -> Any:
        return SimpleNamespace(remote=lambda *args: self._send(method, args))

    def die(self) -> None:
        self.is_dead = True
        for message in self._open:
            self.simulation.after(self.simulation.delay(), lambda ref=message.ref: ref.settle(None, ActorDiedError()))
        self._open.clear()

    def _send(self, method: str, args: tuple[Any, ...]) -> Ref:
        message = Message(method, tuple(map(_copy_arrays, args)), Ref(), self.simulation.faults.max_retries)
        self._open.append(message)
        self._post(message)
        return message.ref

    def _post(self, message: Message) -> None:
        """Send a message, which may be lost on the way. Ray then repeats it."""
        simulation = self.simulation
        if self.is_dead:
            simulation.after(simulation.delay(), lambda: message.ref.settle(None, ActorDiedError()))
        elif simulation.happens(simulation.faults.lost):
            self._repeat(message)
        else:
            simulation.after(simulation.delay(), lambda: self._arrive(message))

    def _repeat(self, message: Message) -> None:
        message.retries -= 1
        if message.retries < 0:
            message.ref.settle(None, ActorUnavailableError("lost", None))
        else:
            self.simulation.after(RETRY_S, lambda: self._post(message))

    def _arrive(self, message: Message) -> None:
        if message.method == "ping":
            thaw = max(0.0, self.frozen_until - self.simulation.now)
            self.simulation.after(thaw, lambda: self._answer(message, (HERE, 0)))
            return
        self._inbox.append(message)
        if not self._is_busy:
            self._begin()

    def _begin(self) -> None:
        self._is_busy = True
        message = self._inbox.popleft()
        simulation = self.simulation
        for task in _tasks_of(message):
            if task not in simulation.disturbed:
                simulation.disturbed.add(task)
                if simulation.happens(simulation.faults.deaths):
                    simulation.after(simulation.delay(), self.die)
                if simulation.happens(simulation.faults.freezes):
                    self.frozen_until = simulation.now + float(simulation.rng.choice(simulation.faults.freeze_s))
        simulation.after(float(simulation.rng.exponential(0.5)), lambda: self._finish(message))

    def _finish(self, message: Message) -> None:
        if self.is_dead:
            return
        if self.frozen_until > self.simulation.now:
            self.simulation.after(self.frozen_until - self.simulation.now, lambda: self._finish(message))
            return
        self._answer(message, _make_call(message))
        self._is_busy = False
        if self._inbox:
            self._begin()

    def _answer(self, message: Message, value: Any) -> None:
        """Send the answer. If the answer is lost, Ray repeats the call, which the worker makes again."""
        if self.is_dead:
            return
        if self.simulation.happens(self.simulation.faults.lost):
            self._repeat(message)
            return
        if message in self._open:
            self._open.remove(message)
        self.simulation.after(self.simulation.delay(), lambda: message.ref.settle(value))


def _copy_arrays(value: Any) -> Any:
    """Return what the object store or a message holds: a copy of an array, or of jobs with arrays."""
    if isinstance(value, np.ndarray | list):
        return deepcopy(value)
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
    noise = np.random.default_rng(task.id).normal(size=task.size).astype(np.float32)
    params = np.float32(0.9) * task.params + np.float32(0.1) * noise
    return Update(task.id, task.client, task.fragment, task.version, params, steps=1, loss=0.5, seconds=0.1)


def evaluate(params: Vector) -> Evaluation:
    return Evaluation(dict.fromkeys(MetricSpec().columns, float(np.abs(params).mean())))
