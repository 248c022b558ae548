"""Liveness probes, which detect frozen actors. They send pings, which an actor answers in a separate thread.

A frozen process is stopped, swapped out or deadlocked. A caller without a probe would wait for it forever.
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

PING_GROUP = "ping"
# Answers are received only in checks, and there may be a long pause between two checks. Such a pause adds at most this
# time to an actor's silence.
MAX_COUNTED_SECONDS = 2.0
# An actor counts as frozen only if it is silent for this multiple of the time of its slowest answer.
SLOWNESS_FACTOR = 10.0
# A process that uses more than this fraction of a core is not frozen.
MIN_CPU_SHARE = 0.05
# Ray repeats a lost call MAX_CALL_RETRIES times. After that the actor counts as dead.
MAX_CALL_RETRIES = 20


@dataclass(frozen=True)
class Heartbeat:
    """The seconds between two pings, and the time limits for the answers.

    The limits are multiplied by the load of the machine.

    Attributes:
        every: Seconds between two pings.
        bound: The limit in seconds for an actor on this node. An actor that is silent for longer counts as frozen.
        far: The limit for an actor on another node, or on a system without CPU times. It is longer than `bound`,
            because large arrays on the network delay pings.
        starts: The limit for the first answer; None for no limit, because the actor may wait for resources.
    """

    every: float = 3.0
    bound: float = 20.0
    far: float = 150.0
    starts: float | None = None


class LivenessProbe:
    """A probe that sends pings to one actor and measures the time until the answer.

    A process on this node that uses CPU time does not count as frozen, even if it does not answer.

    Args:
        actor: The actor.
        heartbeat: The interval and the bounds.
    """

    def __init__(self, actor: Any, heartbeat: Heartbeat) -> None:
        self._actor = actor
        self._heartbeat = heartbeat
        self._here = runtime.node_id()
        # None before the first answer.
        self._node_and_pid: tuple[str, int] | None = None
        self._slowest = self._silent = 0.0
        # The time at which the last answered ping was sent, and the idle time in its answer.
        self._answered_at = self._idle_s = 0.0
        # The CPU seconds that the process had used when half of the time limit was over.
        self._used: float | None = None
        self._looked = runtime.monotonic()
        self._send_ping()

    def silent_seconds(self) -> float | None:
        """Return the seconds without an answer if the actor counts as frozen, otherwise None.

        An actor is frozen if it exceeds the time limit and uses little CPU time. This method must be called regularly.
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
        """Return the part of the actor's last known idle period that is after the monotonic time `since`, in seconds.

        The actor's last answer contains the length of this period. For an actor on another node, the result is 0,
        because the arguments of a call may still be on the network.
        """
        if self._node_and_pid is None or self._node_and_pid[0] != self._here:
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
        # The time until the first answer does not count here, because it includes the start of the process.
        if self._node_and_pid is not None:
            self._slowest = max(self._slowest, self._silent)
        # A dead actor gives a RayError here. It is ignored, because the actor's other calls fail with the same error.
        with suppress(RayError):
            node, process, self._idle_s = runtime.get(ref)
            self._node_and_pid = (node, process)
            self._answered_at = self._sent_at
        self._ref = None
        self._restart_silence()

    def _silence_bound(self) -> float:
        """Return the time limit in seconds. If the actor is silent for longer, it counts as frozen."""
        heartbeat = self._heartbeat
        if self._node_and_pid is None:
            if heartbeat.starts is None:
                return math.inf
            return heartbeat.starts * load_factor()
        bound = heartbeat.far
        if self._node_and_pid[0] == self._here and knows_cpu_seconds():
            bound = heartbeat.bound
        return max(bound * load_factor(), SLOWNESS_FACTOR * self._slowest)

    def _used_cpu(self, seconds: float) -> bool:
        """Return True if the process used CPU time in the last `seconds`. If it did, restart the measured silence at 0.

        For a process on another node, the CPU time is unknown and the result is False.
        """
        works = self._used is not None and self._cpu_seconds() - self._used > MIN_CPU_SHARE * seconds
        if works:
            self._restart_silence()
        return works

    def _cpu_seconds(self) -> float:
        """Return the CPU seconds of the actor's process; 0 if it runs on another node or has not answered yet."""
        if self._node_and_pid is None or self._node_and_pid[0] != self._here:
            return 0.0
        return cpu_seconds(self._node_and_pid[1])


@ray.method(concurrency_group=PING_GROUP)
def ping(self: object) -> tuple[str, int, float]:
    """Return the node, the process id and the idle seconds of an actor.

    The idle seconds are 0 if the actor's class has no method `idle_seconds`.
    """
    measure: Any = getattr(self, "idle_seconds", float)
    return runtime.node_id(), os.getpid(), measure()


def actor_class(kind: Any, groups: Mapping[str, int] = MappingProxyType({})) -> Any:
    """Return a Ray actor class for a Python class. Its actors also answer pings.

    Ray repeats lost calls. A repeated call must have no second effect, and callers must not rely on the order of calls.
    Ray's task events are off, because Ray would store millions of them.

    Args:
        kind: The Python class.
        groups: The number of threads of each concurrency group, by name.
    """
    members = {"ping": ping, "__module__": kind.__module__}
    own = type(kind.__name__, (kind,), members)
    # `ray.remote` accepts options that its type hints do not have.
    as_actor: Any = ray.remote
    options = {"max_task_retries": MAX_CALL_RETRIES, "enable_task_events": False} | any_order_option()
    return as_actor(concurrency_groups={PING_GROUP: 1, **groups}, **options)(own)
