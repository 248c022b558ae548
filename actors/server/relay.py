"""Between a run on Ray and the callbacks in the user's process: events queue at the server until the user asks."""

from collections import deque
from dataclasses import dataclass
from threading import Condition

from fedraa.callbacks.callback_list import CallbackList
from fedraa.callbacks.events import Event, Progress
from fedraa.errors import CallbackRaised

FULL = 10_000  # events in the queue; a run that is so far ahead of its callbacks waits


@dataclass(frozen=True)
class Audience:
    """The kinds of events that the callbacks in the user's process hear, and those whose answers the run waits for."""

    hears: frozenset[str]
    waits: frozenset[str]


class Relay:
    """Tells the server's own callbacks, and queues events for the user's.

    The run calls `tell`, in which it waits for an answer where there has to be one. The user's process calls `listen`
    from another thread, again and again: each call answers the last event of the batch before, and takes all that has
    gathered since.
    """

    def __init__(self, own: CallbackList, audience: Audience) -> None:
        self.hears, self.waits = own.hears | audience.hears, audience.waits
        self.latest: Progress | None = None
        self._own, self._audience = own, audience
        self._changed = Condition()
        self._queue: deque[Event] = deque()
        self._put = self._taken = self._answered = 0  # events, counted from the first
        self._asking: str | None = None
        self._urgent = False  # the run waits for the queue to be taken
        self._over = self._failed = False

    def tell(self, event: Event, *, past: bool = False) -> str | None:
        kind = str(event["kind"])
        if kind in self._own.hears and not past:
            self._own.tell(event)
        if kind not in self._audience.hears:
            return None
        with self._changed:
            self._queue.append(event)
            self._put += 1
            if kind in self._audience.waits and not past:
                self._until_it_has(answered=self._put)
                return self._asking
            if len(self._queue) >= FULL:
                self._until_it_has(answered=0)
            return None

    def progress(self, progress: Progress) -> None:
        self.latest = progress
        self._own.progress(progress)

    def listen(self, asking: str | None, timeout: float) -> list[Event]:
        """What has gathered, as soon as the run waits or is over, or after `timeout` seconds."""
        with self._changed:
            self._answered, self._asking = self._taken, asking
            self._changed.notify_all()
            self._changed.wait_for(lambda: self._over or self._urgent, timeout)
            events = list(self._queue)
            self._queue.clear()
            self._taken, self._urgent = self._put, False
            self._changed.notify_all()
            return events

    def fail(self) -> None:
        """A callback of the user's has failed: nobody will answer any more."""
        with self._changed:
            self._failed = True
            self._changed.notify_all()

    def finish(self) -> None:
        """Nothing more will come."""
        with self._changed:
            self._over = True
            self._changed.notify_all()

    def _until_it_has(self, answered: int) -> None:
        """Wait until the queue was taken, and so many events answered."""
        self._urgent = True
        self._changed.notify_all()
        self._changed.wait_for(lambda: self._failed or (not self._queue and self._answered >= answered))
        if self._failed:
            raise CallbackRaised(None)
