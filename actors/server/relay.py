"""Relay of events from a run on Ray to the callbacks in the user's process, which fetches them from a queue."""

from collections import deque
from dataclasses import dataclass
from threading import Condition

from fedraa.callbacks.callback_list import CallbackList
from fedraa.callbacks.events import Event, Progress
from fedraa.errors import CallbackRaised

# Maximum number of queued events. A run that is further ahead of its callbacks waits.
MAX_QUEUED_EVENTS = 10_000


@dataclass(frozen=True)
class Audience:
    """The event kinds that the callbacks in the user's process receive, and the kinds that the run waits for."""

    subscribed: frozenset[str]
    blocking: frozenset[str]


class Relay:
    """A relay that calls the server's callbacks at once and queues events for the user's callbacks.

    The run calls `tell`, which waits for an answer if the event requires one. The user's process calls `listen`
    regularly from another thread. Each call answers the last event of the previous batch and returns the events since
    then.
    """

    def __init__(self, own: CallbackList, audience: Audience) -> None:
        self.subscribed = own.subscribed | audience.subscribed
        self.blocking = audience.blocking
        self.latest: Progress | None = None
        self._own = own
        self._audience = audience
        self._changed = Condition()
        self._queue: deque[Event] = deque()
        # The number of events since the start of the run that were queued, taken by the user's process, and answered.
        self._put = self._taken = self._answered = 0
        self._asking: str | None = None
        # True while the run waits for the user's process to take the queue.
        self._urgent = False
        self._over = self._failed = False

    def tell(self, event: Event, *, past: bool = False) -> str | None:
        kind = str(event["kind"])
        if kind in self._own.subscribed and not past:
            self._own.tell(event)
        if kind not in self._audience.subscribed:
            return None
        with self._changed:
            self._queue.append(event)
            self._put += 1
            if kind in self._audience.blocking and not past:
                self._wait_for_user(answered=self._put)
                return self._asking
            if len(self._queue) >= MAX_QUEUED_EVENTS:
                self._wait_for_user(answered=0)
            return None

    def progress(self, progress: Progress) -> None:
        self.latest = progress
        self._own.progress(progress)

    def take_events(self, asking: str | None, timeout: float) -> list[Event]:
        """Return the queued events when the run waits or is over, at the latest after `timeout` seconds."""
        with self._changed:
            self._answered = self._taken
            self._asking = asking
            self._changed.notify_all()
            self._changed.wait_for(lambda: self._over or self._urgent, timeout)
            events = list(self._queue)
            self._queue.clear()
            self._taken = self._put
            self._urgent = False
            self._changed.notify_all()
            return events

    def fail(self) -> None:
        """Release the run, because a callback of the user has failed and no answer will come."""
        with self._changed:
            self._failed = True
            self._changed.notify_all()

    def finish(self) -> None:
        """Let `listen` return at once, because no more events will come."""
        with self._changed:
            self._over = True
            self._changed.notify_all()

    def _wait_for_user(self, answered: int) -> None:
        """Wait until the queue has been taken and the first `answered` events have been answered."""
        self._urgent = True
        self._changed.notify_all()
        self._changed.wait_for(lambda: self._failed or (not self._queue and self._answered >= answered))
        if self._failed:
            raise CallbackRaised(None)
