"""Handlers of Ctrl-C and SIGTERM. Either ends a run with a checkpoint, and a second Ctrl-C ends it at once."""

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType


class Stop(threading.Event):
    """A request to stop. Inside the block `honoured` a run can end with a checkpoint."""

    _well = False

    def ask(self) -> None:
        """Handle the first Ctrl-C: request a stop, and raise KeyboardInterrupt if no run can end with a checkpoint."""
        self.set()
        if not self._well:
            raise KeyboardInterrupt("stopped before the run began")

    @contextmanager
    def honoured(self) -> Iterator[None]:
        """Mark the block in which a run reacts to a request to stop: it writes a checkpoint and ends."""
        self._well = True
        try:
            yield
        finally:
            self._well = False


@contextmanager
def stop_on_interrupt(stop: Callable[[], None]) -> Iterator[None]:
    """Call `stop` at the first Ctrl-C in the block, and raise KeyboardInterrupt at any further one.

    This has an effect only in the main thread, and only if the user's program has set no handler for Ctrl-C.
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

    Enter the block after `ray.init`, which installs its own handler.
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
    """Ignore Ctrl-C in the block, which must be a short cleanup."""
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
