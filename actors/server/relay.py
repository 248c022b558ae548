"""Relay of events from a run on Ray to the callbacks in the user's process, which fetches them from a queue."""

from collections import deque
from dataclasses import dataclass

from actors import runtime
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

    The run calls `tell`, which waits for an answer if the event requires one. The user's process calls `take_events`
    regularly from another thread. Each call answers the last event of the previous batch and returns the events since
    then. The calls are numbered, because a call whose answer was lost is repeated.
    """

    def __init__(self, own: CallbackList, audience: Audience) -> None:
        self.subscribed = own.subscribed | audience.subscribed
        self.blocking = audience.blocking
        self.latest: Progress | None = None
        self._own = own
        self._audience = audience
        self._changed = runtime.Condition()
        self._queue: deque[Event] = deque()
        # The number of events since the start of the run that were queued, taken by the user's process, and answered.
        self._put = self._taken = self._answered = 0
        self._asking: str | None = None
        # The number of the last call of `take_events`, and its answer. One call at a time takes the queue.
        self._number = 0
        self._batch: list[Event] = []
        self._taking = runtime.Lock()
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

    def take_events(self, number: int, asking: str | None, timeout: float) -> list[Event]:
        """Return the queued events when the run waits or is over, or the same events again if the call is repeated.

        Args:
            number: The number of the call, from 1. A repeated call has the same number.
            asking: The callback that requested the end of the run at the last event.
            timeout: The maximum time to wait, in seconds.
        """
        with self._taking:
            if number > self._number:
                self._batch = self._take_queue(asking, timeout)
                self._number = number
            return self._batch

    def _take_queue(self, asking: str | None, timeout: float) -> list[Event]:
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
        """Let `take_events` return at once, because no more events will come."""
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
