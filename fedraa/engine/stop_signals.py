"""Ctrl-C and SIGTERM end a run with a checkpoint; a second Ctrl-C ends it at once."""

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType


class Stop(threading.Event):
    """A stop request. Only inside `well` can a run end with a checkpoint."""

    _well = False

    def ask(self) -> None:
        """Handle the first Ctrl-C: request a stop, and raise KeyboardInterrupt if no run can end with a checkpoint."""
        self.set()
        if not self._well:
            raise KeyboardInterrupt("stopped before the run began")

    @contextmanager
    def well(self) -> Iterator[None]:
        """Mark the block in which a run checks for a stop request."""
        self._well = True
        try:
            yield
        finally:
            self._well = False


@contextmanager
def stop_on_interrupt(stop: Callable[[], None]) -> Iterator[None]:
    """Call `stop` at the first Ctrl-C, and raise KeyboardInterrupt from then on.

    It has an effect only in the main thread, and only if the user has not set a handler for Ctrl-C.
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
    """Call `stop` at SIGTERM, which `fedraa stop` and batch systems send.

    Enter it after `ray.init`, which installs a handler.
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
    """Ignore Ctrl-C during a short cleanup, which must not be left half done."""
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
    heard = False

    def handle_first(number: int, frame: FrameType | None) -> None:
        nonlocal heard
        heard = True
        signal.signal(signal.SIGINT, before)

    signal.signal(signal.SIGINT, handle_first)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)
    if heard:
        signal.raise_signal(signal.SIGINT)
