"""Signs of life: every actor answers a ping in a thread of its own, whatever else it is at.

Who is frozen (stopped, swapped out, locked up) answers nothing, and its calls would be waited for without end.
"""

import os
import time
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import ray
from ray.exceptions import RayError

from actors.cluster.processes import cpu_seconds, crowded

GROUP = "pulse"
GLANCE = 2.0  # seconds between two looks that count at most: who is not looked at has no time to answer
SLOWER = 10.0  # times as long as the slowest answer so far may the next one take
AT_WORK = 0.05  # of a core: who uses so much is not frozen


@dataclass(frozen=True)
class Heartbeat:
    """How often an actor is asked, and how long it may owe an answer, in seconds; longer on a crowded machine.

    `starts` is the bound for the first answer of all, None where an actor may have to wait for resources. On other
    nodes, `far`: what is under way to an actor there may hold up the question.
    """

    every: float = 3.0
    bound: float = 20.0
    far: float = 150.0
    starts: float | None = None


class Pulse:
    """Of one actor: asks, and tells when it has been silent for too long.

    A process on this node that computes is not frozen, even if it lets no other thread of its own run.
    """

    def __init__(self, actor: Any, heartbeat: Heartbeat) -> None:
        self._actor, self._heartbeat = actor, heartbeat
        self._here = ray.get_runtime_context().get_node_id()
        self._heard: tuple[str, int] | None = None  # its node and process
        self._slowest = self._silent = 0.0
        self._used: float | None = None  # CPU time until it had been silent for half of what it may be, in s
        self._looked = time.monotonic()
        self._ask()

    def silence(self) -> float | None:
        """Seconds for which it has owed an answer, if these are too many. To be called again and again."""
        now = time.monotonic()
        self._silent += min(GLANCE, now - self._looked)
        self._looked = now
        if self._ref is None:
            if self._silent >= self._heartbeat.every:
                self._ask()
        elif ray.wait([self._ref], timeout=0)[0]:
            self._hear(self._ref)
        else:
            bound = self._bound()
            if self._used is None and self._silent > bound / 2:
                self._used = self._cpu_seconds()
            if self._silent > bound and not self._works(bound / 2):
                return self._silent
        return None

    def _ask(self) -> None:
        self._ref: ray.ObjectRef[Any] | None = self._actor.ping.remote()
        self._begin()

    def _begin(self) -> None:
        self._silent, self._looked, self._used = 0.0, time.monotonic(), None

    def _hear(self, ref: ray.ObjectRef[Any]) -> None:
        if self._heard is not None:  # the first answer waits for its process
            self._slowest = max(self._slowest, self._silent)
        with suppress(RayError):  # it is dead, as its calls will tell
            self._heard = ray.get(ref)
        self._ref = None
        self._begin()

    def _bound(self) -> float:
        heartbeat = self._heartbeat
        if self._heard is None:
            return float("inf") if heartbeat.starts is None else heartbeat.starts * crowded()
        least = heartbeat.bound if self._heard[0] == self._here else heartbeat.far
        return max(least * crowded(), SLOWER * self._slowest)

    def _works(self, seconds: float) -> bool:
        """Whether it has computed in these last seconds, as far as this node can tell; then it has time again."""
        works = self._used is not None and self._cpu_seconds() - self._used > AT_WORK * seconds
        if works:
            self._begin()
        return works

    def _cpu_seconds(self) -> float:
        return cpu_seconds(self._heard[1]) if self._heard is not None and self._heard[0] == self._here else 0.0


@ray.method(concurrency_group=GROUP)
def ping(self: object) -> tuple[str, int]:
    """The node and the process of an actor."""
    return str(ray.get_runtime_context().get_node_id()), os.getpid()


def actor_class(kind: Any) -> Any:
    """A class as that of actors which have a pulse.

    Ray does not keep what it knows of each of their calls: millions of them in a long run.
    """
    members = {"ping": ping, "__module__": kind.__module__}
    own = type(kind.__name__, (kind,), members)
    as_actor: Any = ray.remote  # which is typed for fewer options than it takes
    return as_actor(concurrency_groups={GROUP: 1}, enable_task_events=False)(own)
