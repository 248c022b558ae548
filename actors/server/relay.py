"""The relay of a run's events from the server actor to the callbacks in the user's process."""

from collections import deque
from dataclasses import dataclass

from actors import runtime
from fedraa.callbacks.callback_list import CallbackList
from fedraa.callbacks.events import Event, Progress
from fedraa.errors import CallbackRaised

# When the queue has this number of events, the run waits for the user's callbacks.
MAX_QUEUED_EVENTS = 10_000


@dataclass(frozen=True)
class Audience:
    """The kinds of events that the callbacks in the user's process need.

    Attributes:
        subscribed: The kinds that a callback handles.
        blocking: The kinds after which the run waits until the callbacks return.
    """

    subscribed: frozenset[str]
    blocking: frozenset[str]


class Relay:
    """A relay that passes events to callbacks in the server's process, and queues them for the user's process.

    The run calls `tell` for each event. If the event is blocking, `tell` waits for the user's callbacks. The user's
    process calls `take_events` repeatedly. Each call delivers the callbacks' answer to the last events, and fetches new
    events.

    Args:
        own: The callbacks in the server's process.
        audience: The kinds of events that the user's callbacks need.
    """

    def __init__(self, own: CallbackList, audience: Audience) -> None:
        self.subscribed = own.subscribed | audience.subscribed
        self.blocking = audience.blocking
        self.latest: Progress | None = None
        self._own = own
        self._audience = audience
        self._changed = runtime.Condition()
        self._queue: deque[Event] = deque()
        # Three numbers of events since the start: events that were put into the queue, events that the user's process
        # has taken, and events that the callbacks have answered.
        self._put = self._taken = self._answered = 0
        self._asking: str | None = None
        # The number and the result of the last call of `take_events`. The lock `_taking` allows one call at a time.
        self._number = 0
        self._batch: list[Event] = []
        self._taking = runtime.Lock()
        self._run_waits = False
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
        """Return the events since the last call.

        Args:
            number: The number of the call, from 1. A repeated call has the same number and returns the same events.
            asking: The callback that asked, at the last event, to end the run; None if no callback asked.
            timeout: Seconds in which events are collected. The call returns early if the run waits or is over.
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
            self._changed.wait_for(lambda: self._over or self._run_waits, timeout)
            events = list(self._queue)
            self._queue.clear()
            self._taken = self._put
            self._run_waits = False
            self._changed.notify_all()
            return events

    def fail(self) -> None:
        """Record that one of the user's callbacks raised an exception. The run no longer waits for callbacks."""
        with self._changed:
            self._failed = True
            self._changed.notify_all()

    def finish(self) -> None:
        """Record that the run is over, and close the server's own callbacks. Then `take_events` returns immediately."""
        with self._changed:
            self._over = True
            self._changed.notify_all()
        self._own.close()

    def _wait_for_user(self, answered: int) -> None:
        """Wait until the queue is empty and the user's process has answered `answered` events since the start."""
        self._run_waits = True
        self._changed.notify_all()
        self._changed.wait_for(lambda: self._failed or (not self._queue and self._answered >= answered))
        if self._failed:
            raise CallbackRaised(None)
