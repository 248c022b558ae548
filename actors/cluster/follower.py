"""The driver beside a server: tells the callbacks what happens there, watches that it lives, tells it to stop."""

import logging
import time
from dataclasses import dataclass, field
from typing import Any, Protocol

import ray
from ray.exceptions import RayTaskError

from actors.cluster.processes import crowded
from actors.cluster.run_dir_sync import RunDirSync
from actors.pool.pulse import Pulse
from actors.server.parameter_server import Setting
from fedraa.callbacks import Event, Progress
from fedraa.callbacks.callback_list import CallbackList
from fedraa.engine.stop_signals import Stop
from fedraa.errors import CallbackRaised, RunFailed, ShardDied

LISTEN_SECONDS = 0.2  # that events may gather at the server where the run waits for no answer
GLANCE = 0.2  # seconds between two looks at who lives while an answer is waited for
PULL_SECONDS = 2.0  # between two looks at what is new in a run directory elsewhere
PATIENCE_SECONDS = 20.0  # with workers that lack resources, before the user is told; longer on a crowded machine
STOP_SECONDS = 4.0  # for a server to end when it was told to, besides those in which it writes a checkpoint
SAVING_SECONDS = 0.5  # to say whether it does

logger = logging.getLogger(__name__)


class Watch(Protocol):
    """Looks after what a cluster cannot do without; to be asked again and again."""

    def lost(self) -> str | None:
        """What has happened to it."""

    def made_sure(self) -> str | None:
        """The same, for who has seen something else go wrong: nothing may be known yet of what is behind that."""


class ClusterLost(Exception):
    """The cluster is gone, and the server with it; the message says why."""


class ServerFroze(Exception):
    """The server gives no sign of life."""


class ServerStuck(Exception):
    """The server was told to stop, and does not."""


@dataclass
class Follower:
    """Listens to a server to the end of what it executes.

    Raises what ends a run there, and what ends the server or the cluster: the exceptions above, or Ray's.
    """

    server: Any
    setting: Setting
    callbacks: CallbackList
    stop: Stop
    sync: RunDirSync | None
    watch: Watch
    _stop_at: float | None = None  # when it was told to stop
    _asking: str | None = None  # who, of the callbacks, wants the run to end with the last event
    _raised: CallbackRaised | None = None
    _began: float = field(default_factory=time.monotonic)
    _warned: bool = False
    _pull_at: float = 0.0

    def __post_init__(self) -> None:
        self._pulse = Pulse(self.server, self.setting.heartbeat)

    def follow(self, resume: bool) -> bool:
        if self.sync is not None:
            self._answer(self.server.take.remote(self.sync.read()))
        end = self.server.execute.remote(resume)
        while not ray.wait([end], timeout=0)[0]:
            self._listen()
        self._stop_at = None  # it has ended
        try:
            self._listen()
            ended = bool(ray.get(end))
        except RayTaskError as error:
            if isinstance(error.cause, RunFailed | ValueError | ShardDied):
                raise error.cause from None
            raise
        finally:
            self._pull()
        if self._raised is not None:
            raise self._raised
        return ended

    def _listen(self) -> None:
        """Answers what came before and tells what came since; the server has been waiting for that, perhaps."""
        self._tell_to_stop()
        events, progress, started = self._answer(self.server.listen.remote(self._asking, LISTEN_SECONDS))
        try:
            self._tell(events, progress)
        except CallbackRaised as raised:
            self._raised = raised
            self._answer(self.server.fail.remote())
        if progress is not None and time.monotonic() > self._pull_at:
            self._pull()
        self._warn_of_missing(started)

    def _warn_of_missing(self, started: int) -> None:
        """Once, if workers wait for resources; those that have all that they need only take their time."""
        setting = self.setting
        asked = sum(group.workers for group in setting.groups)
        waits = setting.heartbeat.starts is None and started < asked and not self._warned
        if waits and time.monotonic() - self._began > PATIENCE_SECONDS * crowded():
            self._warned = True
            needs = " or ".join(sorted({_words(group.needs) for group in setting.groups}))
            logger.warning("%d of %d workers have started; the others wait for %s each", started, asked, needs)

    def _answer(self, ref: ray.ObjectRef[Any]) -> Any:
        """What the server answers, as long as it can be hoped for."""
        self._look()
        while not ray.wait([ref], timeout=GLANCE)[0]:
            self._look()
        return ray.get(ref)

    def _look(self) -> None:
        self._tell_to_stop()
        if (lost := self.watch.lost()) is not None:
            raise ClusterLost(lost)
        if (silence := self._pulse.silence()) is not None:
            raise ServerFroze(f"the server froze: no sign of life for {silence:.3g} s")
        if self._stop_at is not None and time.monotonic() > self._stop_at + STOP_SECONDS and not self._saves():
            raise ServerStuck

    def _tell_to_stop(self) -> None:
        if self.stop.is_set() and self._stop_at is None:
            self.server.stop.remote()
            self._stop_at = time.monotonic()

    def _saves(self) -> bool:
        saving = self.server.saving.remote()
        return bool(ray.wait([saving], timeout=SAVING_SECONDS)[0]) and bool(ray.get(saving))

    def _tell(self, events: list[Event], progress: Progress | None) -> None:
        if self._raised is None:
            for event in events:
                self._asking = self.callbacks.tell(event)
            if progress is not None:
                self.callbacks.progress(progress)

    def _pull(self) -> None:
        """Brings what is new here. Not before the first step: a resumed log is cut back first."""
        if self.sync is not None:
            self.sync.apply(self._answer(self.server.changes.remote(self.sync.seen)))
            self._pull_at = time.monotonic() + PULL_SECONDS


def _words(needs: Any) -> str:
    return " and ".join(f"{amount:g} {name}" for name, amount in needs.items() if amount)
