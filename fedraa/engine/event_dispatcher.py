"""The delivery of a run's events to its callbacks after each step of the loop."""

from collections import deque
from collections.abc import Iterable, Mapping

from fedraa.callbacks.callback_list import CallbackList, EventSink
from fedraa.callbacks.events import Progress, to_event


class EventDispatcher:
    """A queue of log lines for the callbacks.

    Attributes:
        stop_source: The name of the first callback that requested a stop, or None.
    """

    def __init__(self, listeners: EventSink | None = None) -> None:
        if listeners is None:
            listeners = CallbackList()
        self._listeners = listeners
        self._undelivered: deque[Mapping[str, object]] = deque()
        self.stop_source: str | None = None

    def recorded(self, line: Mapping[str, object]) -> None:
        """Queue a line of the log if a callback subscribes to its kind."""
        if line["kind"] in self._listeners.subscribed:
            self._undelivered.append(line)

    def deliver(self) -> None:
        """Deliver queued events.

        Raises CallbackRaised if a callback failed. Its event and all later events stay in the queue.
        """
        while self._undelivered:
            asking = self._listeners.tell(to_event(self._undelivered[0]))
            self.stop_source = self.stop_source or asking
            self._undelivered.popleft()

    def progress(self, progress: Progress) -> None:
        self._listeners.progress(progress)

    @property
    def next_undelivered(self) -> int | None:
        """The number (`seq`) of the first undelivered line; None if all lines were delivered."""
        if not self._undelivered:
            return None
        return int(str(self._undelivered[0]["seq"]))

    def replay_events(self, lines: Iterable[Mapping[str, object]], next_undelivered: int | None) -> None:
        """Deliver the earlier events of a resumed run again, from the lines of its log.

        Lines with a `seq` from `next_undelivered` on were never delivered, so they are queued. If
        `next_undelivered` is None, no line is queued.
        """
        for line in lines:
            if line["kind"] not in self._listeners.subscribed:
                continue
            if next_undelivered is None or int(str(line["seq"])) < next_undelivered:
                self._listeners.tell(to_event(line), past=True)
            else:
                self._undelivered.append(line)

    @property
    def waits_for_evaluations(self) -> bool:
        return "eval" in self._listeners.blocking

    @property
    def subscribed(self) -> bool:
        """True if any callback subscribes to events."""
        return bool(self._listeners.subscribed)
