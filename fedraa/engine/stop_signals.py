"""Handlers of Ctrl-C, SIGTERM and SIGHUP. Each signal ends a run with a checkpoint. A second Ctrl-C ends it at once."""

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType

# `fedraa stop` and batch systems send SIGTERM. A terminal that closes sends SIGHUP.
TERMINATION = (signal.SIGTERM, signal.SIGHUP)


class _StopHandler:
    """A handler of a signal that calls `stop`."""

    def __init__(self, stop: Callable[[], None]) -> None:
        self._stop = stop

    def __call__(self, number: int, frame: FrameType | None) -> None:
        self._stop()


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
def stop_on_termination(stop: Callable[[], None]) -> Iterator[None]:
    """Call `stop` at SIGTERM in the block, and at SIGHUP.

    The block replaces any handler of SIGTERM, because Ray installs one. It keeps another program's handler of SIGHUP,
    and `nohup` still ignores SIGHUP. Enter the block after `ray.init`, which installs another handler of SIGTERM.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    handled = [number for number in TERMINATION if number == signal.SIGTERM or _is_replaceable(number)]
    before = {number: signal.signal(number, _StopHandler(stop)) for number in handled}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _is_replaceable(number: signal.Signals) -> bool:
    """Return True if a signal has no handler, or a handler of this module."""
    handler = signal.getsignal(number)
    return handler is signal.SIG_DFL or isinstance(handler, _StopHandler)


@contextmanager
def ignore_interrupts() -> Iterator[None]:
    """Ignore Ctrl-C, SIGTERM and SIGHUP in the block, which must be short."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = {number: signal.signal(number, signal.SIG_IGN) for number in (signal.SIGINT, *TERMINATION)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


@contextmanager
def defer_interrupts() -> Iterator[None]:
    """Defer Ctrl-C and SIGHUP until the block exits. A second signal takes effect immediately.

    A signal without a Python handler is not deferred.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGHUP)}
    deferred = {number: handler for number, handler in before.items() if callable(handler)}
    arrived: list[int] = []

    def restore_handlers() -> None:
        for number, handler in deferred.items():
            signal.signal(number, handler)

    def handle_first(number: int, frame: FrameType | None) -> None:
        arrived.append(number)
        restore_handlers()

    for number in deferred:
        signal.signal(number, handle_first)
    try:
        yield
    finally:
        restore_handlers()
        # The user also wants to stop if the block has failed.
        if arrived:
            signal.raise_signal(arrived[0])
