"""Liveness probes, which detect frozen actors. They send pings, which every actor answers in a separate thread.

A frozen process is stopped, swapped out or deadlocked. It does not answer calls, so a caller without a probe would wait
forever.
"""

import math
import os
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

import ray
from ray.exceptions import RayError

from actors import runtime
from actors.cluster.processes import cpu_seconds, knows_cpu_seconds, load_factor
from actors.ray_versions import AnyRef, any_order_option

GROUP = "pulse"
# The silence of an actor is the time without an answer to a ping. One interval between two checks adds at most this
# number of seconds to it. Answers are only received in checks, so a long pause between two checks does not show that
# the actor is silent.
MAX_COUNTED_SECONDS = 2.0
# An actor does not count as frozen until its answer takes this number of times as long as its slowest answer so far.
SLOWNESS_FACTOR = 10.0
# A process that uses more than this share of a core is not frozen.
MIN_CPU_SHARE = 0.05
# If the request or the answer of a call is lost, Ray repeats the call at most this number of times. Then the actor
# counts as dead.
MAX_CALL_RETRIES = 20


@dataclass(frozen=True)
class Heartbeat:
    """The interval between the pings of a liveness probe, and the time limits for the answers, in seconds.

    The time limits are multiplied by the load of the machine.

    Attributes:
        every: The time between two pings.
        bound: The time after which an actor on this node counts as frozen if it has not answered.
        far: The same time for an actor on another node, or on a system that does not report CPU times. It is longer,
            because large arrays on the network can delay a ping, and because without CPU times a busy process looks
            like a frozen one.
        starts: The same time for the first answer; None for no limit, because the actor may have to wait for resources.
    """

    every: float = 3.0
    bound: float = 20.0
    far: float = 150.0
    starts: float | None = None


class LivenessProbe:
    """A check that one actor is alive: it sends pings to the actor and measures the time until the answer.

    If the actor's process is on this node and uses CPU time, it does not count as frozen even if it does not answer.

    Args:
        actor: The actor.
        heartbeat: The interval and the bounds.
    """

    def __init__(self, actor: Any, heartbeat: Heartbeat) -> None:
        self._actor = actor
        self._heartbeat = heartbeat
        self._here = runtime.node_id()
        # The node and the process id of the actor; None before the first answer.
        self._heard: tuple[str, int] | None = None
        self._slowest = self._silent = 0.0
        # The time at which the last answered ping was sent, and the idle time in its answer.
        self._answered_at = self._idle_s = 0.0
        # The CPU seconds of the actor's process at the time when half of the silence bound had passed; None before this
        # time.
        self._used: float | None = None
        self._looked = runtime.monotonic()
        self._send_ping()

    def silent_seconds(self) -> float | None:
        """Return for how many seconds the actor has not answered, if it counts as frozen. Otherwise return None.

        An actor counts as frozen if it has not answered for longer than the bound and its process used little CPU time.
        The method must be called regularly.
        """
        now = runtime.monotonic()
        self._silent += min(MAX_COUNTED_SECONDS, now - self._looked)
        self._looked = now
        if self._ref is None:
            if self._silent >= self._heartbeat.every:
                self._send_ping()
        elif runtime.wait([self._ref], timeout=0)[0]:
            self._take_answer(self._ref)
        else:
            bound = self._silence_bound()
            if self._used is None and self._silent > bound / 2:
                self._used = self._cpu_seconds()
            if self._silent > bound and not self._used_cpu(bound / 2):
                return self._silent
        return None

    def idle_seconds(self, since: float) -> float:
        """Return for how many seconds the actor has been idle since the monotonic time `since`, by its last answer.

        The result is 0 for an actor on another node. Its arguments or its result may still be on the network.
        """
        if self._heard is None or self._heard[0] != self._here:
            return 0.0
        return max(0.0, min(self._answered_at - since, self._idle_s))

    def _send_ping(self) -> None:
        self._ref: AnyRef | None = self._actor.ping.remote()
        self._sent_at = runtime.monotonic()
        self._restart_silence()

    def _restart_silence(self) -> None:
        self._silent = 0.0
        self._used = None
        self._looked = runtime.monotonic()

    def _take_answer(self, ref: AnyRef) -> None:
        # The time of the first answer is not recorded, because it includes the start of the process.
        if self._heard is not None:
            self._slowest = max(self._slowest, self._silent)
        # An error means that the actor is dead. The probe ignores it, because other calls of the actor fail with the
        # same error.
        with suppress(RayError):
            node, process, self._idle_s = runtime.get(ref)
            self._heard = (node, process)
            self._answered_at = self._sent_at
        self._ref = None
        self._restart_silence()

    def _silence_bound(self) -> float:
        """Return the number of seconds without an answer after which the actor counts as frozen."""
        heartbeat = self._heartbeat
        if self._heard is None:
            if heartbeat.starts is None:
                return math.inf
            return heartbeat.starts * load_factor()
        bound = heartbeat.far
        if self._heard[0] == self._here and knows_cpu_seconds():
            bound = heartbeat.bound
        return max(bound * load_factor(), SLOWNESS_FACTOR * self._slowest)

    def _used_cpu(self, seconds: float) -> bool:
        """Return True if the actor's process used CPU time in the last `seconds` seconds.

        In this case the silence of the actor is counted from 0 again. The result is False for a process on another
        node, because its CPU time cannot be read.
        """
        works = self._used is not None and self._cpu_seconds() - self._used > MIN_CPU_SHARE * seconds
        if works:
            self._restart_silence()
        return works

    def _cpu_seconds(self) -> float:
        """Return the CPU time of the actor's process in seconds, or 0 if the process is not on this node."""
        if self._heard is None or self._heard[0] != self._here:
            return 0.0
        return cpu_seconds(self._heard[1])


@ray.method(concurrency_group=GROUP)
def ping(self: object) -> tuple[str, int, float]:
    """Return the node and the process id of an actor, and for how many seconds it has been idle.

    The last number is 0 if the actor's class has no method `idle_seconds`.
    """
    measure: Any = getattr(self, "idle_seconds", float)
    return runtime.node_id(), os.getpid(), measure()


def actor_class(kind: Any, groups: Mapping[str, int] = MappingProxyType({})) -> Any:
    """Return a Ray actor class for a Python class. Its actors also answer the pings of liveness probes.

    If Ray loses the request or the answer of a call, it repeats the call. Therefore a second execution of the same call
    must have no effect, and callers must not rely on the order of their calls. Ray's task events are off, because Ray
    would store millions of them in a long run.

    Args:
        kind: The Python class.
        groups: The number of threads of each concurrency group of the class, by name.
    """
    members = {"ping": ping, "__module__": kind.__module__}
    own = type(kind.__name__, (kind,), members)
    # The type hints of `ray.remote` declare fewer options than Ray accepts.
    as_actor: Any = ray.remote
    options = {"max_task_retries": MAX_CALL_RETRIES, "enable_task_events": False} | any_order_option()
    return as_actor(concurrency_groups={GROUP: 1, **groups}, **options)(own)
