"""Liveness probes: every actor answers a ping in a separate thread while it works.

A frozen process (stopped, swapped out or deadlocked) answers no call, so that its caller would wait forever.
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
from actors.cluster.processes import cpu_seconds, load_factor
from actors.ray_versions import AnyRef, any_order_option

GROUP = "pulse"
# The time between two checks adds at most this many seconds to an actor's silence. An answer cannot arrive while no
# check runs.
MAX_COUNTED_SECONDS = 2.0
# An answer may take this many times as long as the slowest answer so far.
SLOWNESS_FACTOR = 10.0
# Share of a core: a process that uses this much CPU time is not frozen.
MIN_CPU_SHARE = 0.05
# Maximum number of times that Ray repeats a call after a lost request or answer. Then the actor counts as dead.
MAX_CALL_RETRIES = 20


@dataclass(frozen=True)
class Heartbeat:
    """The interval of liveness probes and the bounds on their answers, in seconds. A crowded machine gets more time.

    `starts` bounds the first answer; None if an actor may have to wait for resources. `far` is the bound for actors on
    other nodes, because data on its way to an actor can delay the ping.
    """

    every: float = 3.0
    bound: float = 20.0
    far: float = 150.0
    starts: float | None = None


class LivenessProbe:
    """The liveness probe of one actor.

    A process on this node that uses CPU time is not frozen, even if none of its other threads can run.
    """

    def __init__(self, actor: Any, heartbeat: Heartbeat) -> None:
        self._actor = actor
        self._heartbeat = heartbeat
        self._here = runtime.node_id()
        # Node and process id of the actor.
        self._heard: tuple[str, int] | None = None
        self._slowest = self._silent = 0.0
        # CPU seconds of the process when half of the bound had passed.
        self._used: float | None = None
        self._looked = runtime.monotonic()
        self._send_ping()

    def silent_seconds(self) -> float | None:
        """Return the seconds without an answer if they exceed the bound and the process used little CPU, else None.

        The caller repeats this call regularly.
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

    def _send_ping(self) -> None:
        self._ref: AnyRef | None = self._actor.ping.remote()
        self._restart_silence()

    def _restart_silence(self) -> None:
        self._silent = 0.0
        self._used = None
        self._looked = runtime.monotonic()

    def _take_answer(self, ref: AnyRef) -> None:
        # The time of the first answer includes the start of the process.
        if self._heard is not None:
            self._slowest = max(self._slowest, self._silent)
        # Calls of a dead actor report its death.
        with suppress(RayError):
            self._heard = runtime.get(ref)
        self._ref = None
        self._restart_silence()

    def _silence_bound(self) -> float:
        """Return the seconds without an answer after which the actor counts as frozen."""
        heartbeat = self._heartbeat
        if self._heard is None:
            if heartbeat.starts is None:
                return math.inf
            return heartbeat.starts * load_factor()
        bound = heartbeat.bound if self._heard[0] == self._here else heartbeat.far
        return max(bound * load_factor(), SLOWNESS_FACTOR * self._slowest)

    def _used_cpu(self, seconds: float) -> bool:
        """Return True if the process used CPU time in the last `seconds`. If so, count its silence from 0 again.

        Only processes of this node can be inspected.
        """
        works = self._used is not None and self._cpu_seconds() - self._used > MIN_CPU_SHARE * seconds
        if works:
            self._restart_silence()
        return works

    def _cpu_seconds(self) -> float:
        """Return the CPU seconds of the actor's process; 0 if it is not on this node."""
        if self._heard is None or self._heard[0] != self._here:
            return 0.0
        return cpu_seconds(self._heard[1])


@ray.method(concurrency_group=GROUP)
def ping(self: object) -> tuple[str, int]:
    """Return the node and the process id of an actor."""
    return runtime.node_id(), os.getpid()


def actor_class(kind: Any, groups: Mapping[str, int] = MappingProxyType({})) -> Any:
    """Return a class as an actor class with a liveness probe.

    Ray repeats a call of a living actor if it lost the request or the answer. Therefore a second execution of a call
    must have no effect, and callers must not rely on the order of their calls. Ray's task events are off, because Ray
    would store millions of events in a long run.

    Args:
        kind: The class.
        groups: The number of threads of each further concurrency group.
    """
    members = {"ping": ping, "__module__": kind.__module__}
    own = type(kind.__name__, (kind,), members)
    # The type of `ray.remote` declares fewer options than Ray accepts.
    as_actor: Any = ray.remote
    options = {"max_task_retries": MAX_CALL_RETRIES, "enable_task_events": False} | any_order_option()
    return as_actor(concurrency_groups={GROUP: 1, **groups}, **options)(own)
