"""Handlers of Ctrl-C and SIGTERM. Either signal ends a run with a checkpoint. A second Ctrl-C ends it at once."""

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType


class Stop(threading.Event):
    """A request to stop. If it comes inside the block `honoured`, the run saves a checkpoint and ends."""

    _is_honoured = False

    def ask(self) -> None:
        """Request a stop. Raises KeyboardInterrupt if the call is outside of the block `honoured`."""
        self.set()
        if not self._is_honoured:
            raise KeyboardInterrupt("stopped before the run began")

    @contextmanager
    def honoured(self) -> Iterator[None]:
        """Mark the block in which a request to stop makes the run save a checkpoint and end."""
        self._is_honoured = True
        try:
            yield
        finally:
            self._is_honoured = False


@contextmanager
def stop_on_interrupt(stop: Callable[[], None]) -> Iterator[None]:
    """Call `stop` at the first Ctrl-C in the block. Raise KeyboardInterrupt at any further one.

    This works only in the main thread, and only if the user's program has no handler for Ctrl-C.
    """
    if (
        threading.current_thread() is not threading.main_thread()
        or signal.getsignal(signal.SIGINT) is not signal.default_int_handler
    ):
        yield
        return

    def handle_first(number: int, frame: FrameType | None) -> None:
        signal.signal(signal.SIGINT, signal.default_int_handler)
        stop()

    signal.signal(signal.SIGINT, handle_first)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, signal.default_int_handler)


@contextmanager
def stop_on_sigterm(stop: Callable[[], None]) -> Iterator[None]:
    """Call `stop` at SIGTERM in the block. `fedraa stop` and batch systems send this signal.

    Enter the block after `ray.init`, which installs another handler.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(signal.SIGTERM, lambda number, frame: stop())
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


@contextmanager
def ignore_interrupts() -> Iterator[None]:
    """Ignore Ctrl-C in the block, which must be short."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


@contextmanager
def defer_interrupts() -> Iterator[None]:
    """Defer Ctrl-C until the block exits. A second Ctrl-C interrupts immediately."""
    before = signal.getsignal(signal.SIGINT)
    if threading.current_thread() is not threading.main_thread() or not callable(before):
        yield
        return
    was_interrupted = False

    def handle_first(number: int, frame: FrameType | None) -> None:
        nonlocal was_interrupted
        was_interrupted = True
        signal.signal(signal.SIGINT, before)

    signal.signal(signal.SIGINT, handle_first)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)
    if was_interrupted:
        signal.raise_signal(signal.SIGINT)
