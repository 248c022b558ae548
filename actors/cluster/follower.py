"""The driver's loop during a run on Ray: events for the callbacks, health checks, and stop requests."""

import logging
import math
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Protocol

from ray.exceptions import RayTaskError

from actors import runtime
from actors.cluster.processes import load_factor
from actors.cluster.run_dir_sync import RunDirSync
from actors.pool.liveness import LivenessProbe
from actors.ray_versions import AnyRef
from actors.server.parameter_server import Setting
from fedraa.callbacks import Event, Progress
from fedraa.callbacks.callback_list import CallbackList
from fedraa.engine.stop_signals import Stop
from fedraa.errors import CallbackRaised, RunFailed, ShardDied

# The server collects events for at most this time before it answers a request for events.
LISTEN_SECONDS = 0.2
# The pause between two health checks while the driver waits for an answer.
CHECK_SECONDS = 0.2
# The driver copies new files from the server's node, then pauses for this time, and copies again.
PULL_SECONDS = 2.0
# The driver warns if workers wait for resources longer than this time, multiplied by the machine's load.
START_WARNING_SECONDS = 20.0
# After a stop request, the server must end within this time. The time of writing a checkpoint does not count.
STOP_SECONDS = 4.0
# The driver waits at most this time for the server's answer to `is_saving`.
IS_SAVING_TIMEOUT_SECONDS = 0.5
# The driver waits at most this time until a server on another node has removed its temporary files.
CLOSE_SECONDS = 5.0

logger = logging.getLogger(__name__)


class HealthMonitor(Protocol):
    """A health check of the processes that a cluster needs. The driver calls it regularly."""

    def lost(self) -> str | None:
        """Return why the cluster is lost, or None."""

    def confirm_lost(self) -> str | None:
        """Check until the result is certain. Return why the cluster is lost, or None.

        The driver calls this method after a failure of the server or a shard.
        """


class ClusterLost(Exception):
    """The cluster and its server are lost. The error message has the reason."""


class ServerFroze(Exception):
    """The server did not answer pings and used no CPU time for too long."""


class ServerStuck(Exception):
    """The server did not end in time after a stop request."""


@dataclass
class Follower:
    """The driver's loop, which passes the server's events to the callbacks until the run ends.

    Attributes:
        server: The server actor.
        setting: The server's inputs other than the run.
        callbacks: The user's callbacks.
        stop: The user's request to stop the run.
        sync: The copy of the run directory on this node, if the server runs on another node.
        watch: The health check of the cluster.
    """

    server: Any
    setting: Setting
    callbacks: CallbackList
    stop: Stop
    sync: RunDirSync | None
    watch: HealthMonitor
    _stopped_at: float | None = None
    # The name of the callback that received the last event and asked to end the run.
    _asking: str | None = None
    # The number of calls of `take_events`.
    _number: int = 0
    _raised: CallbackRaised | None = None
    _warned: bool = False
    _pull_at: float = 0.0

    def __post_init__(self) -> None:
        self._began = runtime.monotonic()
        self._probe = LivenessProbe(self.server, self.setting.heartbeat)

    def follow(self, resume: bool) -> bool:
        """Let the server start or resume the run. Return True if the run reached its end.

        Raises ServerFroze, ServerStuck, ClusterLost, Unwritable, an error of Ray, or the exception that ended the run.
        """
        if self.sync is None:
            return self._follow(resume)
        self.sync.seen = self._await_answer(self.server.take.remote(self.sync.read()))
        try:
            ended = self._follow(resume)
        except ClusterLost:
            raise
        except BaseException:
            self._close_server()
            raise
        self._close_server()
        return ended

    def _follow(self, resume: bool) -> bool:
        end = self.server.execute.remote(resume)
        while not runtime.wait([end], timeout=0)[0]:
            self._exchange_events()
        # The run has ended, so there is no time limit after a stop request, and the server gets no new stop request.
        self._stopped_at = math.inf
        try:
            self._exchange_events()
            ended = bool(runtime.get(end))
        except RayTaskError as error:
            if isinstance(error.cause, RunFailed | ValueError | ShardDied):
                raise error.cause from None
            raise
        finally:
            self._copy_changes()
        if self._raised is not None:
            raise self._raised
        return ended

    def _close_server(self) -> None:
        """Let the server remove its temporary files, because it is killed next. A dead server leaves its files."""
        # A call of a dead server can raise any exception.
        with suppress(Exception):
            runtime.wait([self.server.close.remote()], timeout=CLOSE_SECONDS)

    def _exchange_events(self) -> None:
        """Send the callbacks' answers to the previous events, then call the callbacks with new events."""
        self._tell_to_stop()
        self._number += 1
        batch = self.server.take_events.remote(self._number, self._asking, LISTEN_SECONDS)
        events, progress, started = self._await_answer(batch)
        try:
            self._deliver_events(events, progress)
        except CallbackRaised as raised:
            self._raised = raised
            self._await_answer(self.server.fail.remote())
        if progress is not None and runtime.monotonic() > self._pull_at:
            self._copy_changes()
        self._warn_of_missing(started)

    def _warn_of_missing(self, started: int) -> None:
        """Warn once if workers have not started because they wait for resources."""
        setting = self.setting
        requested = sum(group.workers for group in setting.groups)
        waits = setting.heartbeat.starts is None and started < requested and not self._warned
        if waits and runtime.monotonic() - self._began > START_WARNING_SECONDS * load_factor():
            self._warned = True
            needs = " or ".join(sorted({_resource_text(group.needs) for group in setting.groups}))
            logger.warning("workers: %d of %d have started; each of the others needs %s", started, requested, needs)

    def _await_answer(self, ref: AnyRef) -> Any:
        """Wait for an answer of the server. Raise an error if the server or the cluster fails."""
        self._check_health()
        while not runtime.wait([ref], timeout=CHECK_SECONDS)[0]:
            self._check_health()
        return runtime.get(ref)

    def _check_health(self) -> None:
        """Raise an error if the cluster is lost, or the server is frozen or does not stop."""
        self._tell_to_stop()
        lost = self.watch.lost()
        if lost is not None:
            raise ClusterLost(lost)
        silence = self._probe.silent_seconds()
        if silence is not None:
            raise ServerFroze(f"the server froze: no sign of life for {silence:.3g} s")
        if (
            self._stopped_at is not None
            and runtime.monotonic() > self._stopped_at + STOP_SECONDS
            and not self._is_saving()
        ):
            raise ServerStuck

    def _tell_to_stop(self) -> None:
        if self.stop.is_set() and self._stopped_at is None:
            self.server.stop.remote()
            self._stopped_at = runtime.monotonic()

    def _is_saving(self) -> bool:
        """Return True if the server is writing a checkpoint; False if not, or if it does not answer in time."""
        saving = self.server.is_saving.remote()
        return bool(runtime.wait([saving], timeout=IS_SAVING_TIMEOUT_SECONDS)[0]) and bool(runtime.get(saving))

    def _deliver_events(self, events: list[Event], progress: Progress | None) -> None:
        if self._raised is None:
            for event in events:
                self._asking = self.callbacks.tell(event)
            if progress is not None:
                self.callbacks.progress(progress)

    def _copy_changes(self) -> None:
        """Copy new and changed files of the run from the server's node.

        A resumed run first removes from its log all lines that are newer than the checkpoint. Call this method only
        after that.
        """
        if self.sync is not None:
            self.sync.apply(self._await_answer(self.server.changes.remote(self.sync.seen)))
            self._pull_at = runtime.monotonic() + PULL_SECONDS


def _resource_text(needs: Any) -> str:
    return " and ".join(f"{amount:g} {name}" for name, amount in needs.items() if amount)
