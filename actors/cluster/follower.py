"""The driver's side of a run: forward events to callbacks, watch the server's health, and request its stop."""

import logging
from dataclasses import dataclass
from typing import Any, Protocol

from ray.exceptions import RayTaskError

from actors import runtime
from actors.cluster.processes import load_factor
from actors.cluster.run_dir_sync import RunDirSync
from actors.pool.pulse import LivenessProbe
from actors.ray_versions import AnyRef
from actors.server.parameter_server import Setting
from fedraa.callbacks import Event, Progress
from fedraa.callbacks.callback_list import CallbackList
from fedraa.engine.stop_signals import Stop
from fedraa.errors import CallbackRaised, RunFailed, ShardDied

# Seconds during which the server may collect events before it answers, if the run waits for no callback.
LISTEN_SECONDS = 0.2
# Seconds between two health checks while the driver waits for an answer.
CHECK_SECONDS = 0.2
# Seconds between two synchronizations of a remote run directory.
PULL_SECONDS = 2.0
# Seconds without all workers before the user is warned about missing resources. A crowded machine gets more time.
PATIENCE_SECONDS = 20.0
# Maximum seconds that a server may take to end after a stop request, not counting the writing of a checkpoint.
STOP_SECONDS = 4.0
# Maximum seconds that a server may take to answer whether it is writing a checkpoint.
SAVING_SECONDS = 0.5

logger = logging.getLogger(__name__)


class HealthMonitor(Protocol):
    """A health check of a part of the cluster that the run needs. The driver calls it regularly."""

    def lost(self) -> str | None:
        """Return the cause if the part is lost."""

    def confirm_lost(self) -> str | None:
        """Check again, and return the cause if the part is lost.

        The driver calls this after another failure, which may be the first sign of the loss.
        """


class ClusterLost(Exception):
    """The cluster and its server are gone; the message gives the cause."""


class ServerFroze(Exception):
    """The server gives no sign of life."""


class ServerStuck(Exception):
    """The server does not end after a stop request."""


@dataclass
class Follower:
    """The driver's loop beside a server: forwards its events to the callbacks until the run ends.

    Raises the exception that ended the run, ServerFroze, ServerStuck, ClusterLost, or an error of Ray's.
    """

    server: Any
    setting: Setting
    callbacks: CallbackList
    stop: Stop
    sync: RunDirSync | None
    watch: HealthMonitor
    # Time of the stop request (monotonic).
    _stop_at: float | None = None
    # The callback that requested the end of the run at the last event.
    _asking: str | None = None
    # The number of calls for events.
    _number: int = 0
    _raised: CallbackRaised | None = None
    _warned: bool = False
    _pull_at: float = 0.0

    def __post_init__(self) -> None:
        self._began = runtime.monotonic()
        self._pulse = LivenessProbe(self.server, self.setting.heartbeat)

    def follow(self, resume: bool) -> bool:
        if self.sync is not None:
            self._await_answer(self.server.take.remote(self.sync.read()))
        end = self.server.execute.remote(resume)
        while not runtime.wait([end], timeout=0)[0]:
            self._exchange_events()
        # The server has ended, so that there is no stop request to check.
        self._stop_at = None
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

    def _exchange_events(self) -> None:
        """Answer the server's previous events, for which the run may be waiting, and handle the new events."""
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
        """Warn once if workers wait for resources. Workers that have their resources only need time to start."""
        setting = self.setting
        requested = sum(group.workers for group in setting.groups)
        waits = setting.heartbeat.starts is None and started < requested and not self._warned
        if waits and runtime.monotonic() - self._began > PATIENCE_SECONDS * load_factor():
            self._warned = True
            needs = " or ".join(sorted({_resource_text(group.needs) for group in setting.groups}))
            logger.warning("%d of %d workers have started; each of the others waits for %s", started, requested, needs)

    def _await_answer(self, ref: AnyRef) -> Any:
        """Return the server's answer. Raises an error if the server or the cluster fails meanwhile."""
        self._check_health()
        while not runtime.wait([ref], timeout=CHECK_SECONDS)[0]:
            self._check_health()
        return runtime.get(ref)

    def _check_health(self) -> None:
        """Raise an error if the cluster is lost, or if the server is frozen or does not stop."""
        self._tell_to_stop()
        lost = self.watch.lost()
        if lost is not None:
            raise ClusterLost(lost)
        silence = self._pulse.silent_seconds()
        if silence is not None:
            raise ServerFroze(f"the server froze: no sign of life for {silence:.3g} s")
        if self._stop_at is not None and runtime.monotonic() > self._stop_at + STOP_SECONDS and not self._is_saving():
            raise ServerStuck

    def _tell_to_stop(self) -> None:
        if self.stop.is_set() and self._stop_at is None:
            self.server.stop.remote()
            self._stop_at = runtime.monotonic()

    def _is_saving(self) -> bool:
        """Return True if the server answers that it is writing a checkpoint."""
        saving = self.server.is_saving.remote()
        return bool(runtime.wait([saving], timeout=SAVING_SECONDS)[0]) and bool(runtime.get(saving))

    def _deliver_events(self, events: list[Event], progress: Progress | None) -> None:
        if self._raised is None:
            for event in events:
                self._asking = self.callbacks.tell(event)
            if progress is not None:
                self.callbacks.progress(progress)

    def _copy_changes(self) -> None:
        """Copy new files of the run to this node.

        The caller waits for the first step before it copies, because the log of a resumed run is cut first.
        """
        if self.sync is not None:
            self.sync.apply(self._await_answer(self.server.changes.remote(self.sync.seen)))
            self._pull_at = runtime.monotonic() + PULL_SECONDS


def _resource_text(needs: Any) -> str:
    return " and ".join(f"{amount:g} {name}" for name, amount in needs.items() if amount)
