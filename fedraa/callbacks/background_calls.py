"""Call functions in a thread, so that a run does not wait for them."""

import threading
from collections.abc import Callable
from queue import SimpleQueue

_Call = tuple[Callable[[], None], threading.Event]


class BackgroundCalls:
    """A thread that calls functions one after another, until one of them raises an error.

    The thread is a daemon, so a call that does not return does not keep the process alive.

    Args:
        name: The name of the thread.

    Attributes:
        error: The error of a call, or None. The thread skips all calls after it.
    """

    def __init__(self, name: str) -> None:
        self.error: Exception | None = None
        self._queue: SimpleQueue[_Call | None] = SimpleQueue()
        threading.Thread(target=self._run, name=name, daemon=True).start()

    def add(self, function: Callable[[], None]) -> threading.Event:
        """Queue a call, and return an event that is set when the call has ended."""
        ended = threading.Event()
        self._queue.put((function, ended))
        return ended

    def close(self) -> None:
        """Let the thread end after the queued calls. This method does not wait for them."""
        self._queue.put(None)

    def _run(self) -> None:
        while (call := self._queue.get()) is not None:
            function, ended = call
            try:
                if self.error is None:
                    function()
            # The Python package of a tracking service can raise any exception.
            except Exception as error:
                self.error = error
            finally:
                ended.set()
