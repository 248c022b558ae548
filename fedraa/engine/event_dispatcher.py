"""Between a run's log and its callbacks: what a move has recorded is told once it is done, when all is consistent."""

from collections import deque
from collections.abc import Iterable, Mapping

from fedraa.callbacks.callback_list import CallbackList, Listeners
from fedraa.callbacks.events import Progress, event_of


class Announcer:
    """Gathers lines of the log as they are recorded, and tells them in their order when it is asked to."""

    def __init__(self, listeners: Listeners | None = None) -> None:
        self._listeners = CallbackList() if listeners is None else listeners
        self._untold: deque[Mapping[str, object]] = deque()

    def recorded(self, line: Mapping[str, object]) -> None:
        """A line has been written to the log."""
        if line["kind"] in self._listeners.hears:
            self._untold.append(line)

    def tell(self) -> str | None:
        """Tell what was gathered; the name of who asks to end the run with it, if anyone does.

        CallbackRaised if a callback fails: its event is not told then, nor those behind it.
        """
        asking = None
        while self._untold:
            asking = self._listeners.tell(event_of(self._untold[0])) or asking
            self._untold.popleft()
        return asking

    def progress(self, progress: Progress) -> None:
        self._listeners.progress(progress)

    @property
    def heard(self) -> int | None:
        """The line (`seq`) from which on nothing has been told; None: all has."""
        return int(str(self._untold[0]["seq"])) if self._untold else None

    def past(self, lines: Iterable[Mapping[str, object]], heard: int | None) -> None:
        """Tell what the log of a resumed run holds. What had not been told before is new, and `tell` is to tell it."""
        for line in lines:
            if line["kind"] not in self._listeners.hears:
                continue
            if heard is None or int(str(line["seq"])) < heard:
                self._listeners.tell(event_of(line), past=True)
            else:
                self._untold.append(line)

    @property
    def waits_for_evaluations(self) -> bool:
        return "eval" in self._listeners.waits

    @property
    def hears(self) -> bool:
        """Whether there is anyone to tell anything."""
        return bool(self._listeners.hears)
