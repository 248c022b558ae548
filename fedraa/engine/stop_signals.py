"""Ctrl-C and SIGTERM ask a run to end with a checkpoint; a second Ctrl-C ends it at once."""

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType


class Stop(threading.Event):
    """Whether a run is to end. Only `well` within is there something to end with a checkpoint."""

    _well = False

    def ask(self) -> None:
        """For the first Ctrl-C: KeyboardInterrupt, at once, where nothing can be ended well."""
        self.set()
        if not self._well:
            raise KeyboardInterrupt("stopped before the run began")

    @contextmanager
    def well(self) -> Iterator[None]:
        """Meanwhile somebody looks whether this is set."""
        self._well = True
        try:
            yield
        finally:
            self._well = False


@contextmanager
def interruptible(stop: Callable[[], None]) -> Iterator[None]:
    """Ctrl-C calls `stop` the first time and raises KeyboardInterrupt from then on.

    Only where Ctrl-C would raise KeyboardInterrupt anyway: in the main thread, under no handler of the user's.
    """
    if (
        threading.current_thread() is not threading.main_thread()
        or signal.getsignal(signal.SIGINT) is not signal.default_int_handler
    ):
        yield
        return

    def first(number: int, frame: FrameType | None) -> None:
        signal.signal(signal.SIGINT, signal.default_int_handler)
        stop()

    signal.signal(signal.SIGINT, first)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, signal.default_int_handler)


@contextmanager
def terminable(stop: Callable[[], None]) -> Iterator[None]:
    """SIGTERM, which `fedraa stop` and batch systems send, calls `stop`. To be entered after `ray.init`, which has a
    handler of its own."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(signal.SIGTERM, lambda number, frame: stop())
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


@contextmanager
def uninterrupted() -> Iterator[None]:
    """Ctrl-C does nothing: for cleaning up, which takes a moment and must not be left half done."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


@contextmanager
def deferred() -> Iterator[None]:
    """Ctrl-C is heard when this is over: for what must not be left half made. A second one is heard at once."""
    before = signal.getsignal(signal.SIGINT)
    if threading.current_thread() is not threading.main_thread() or not callable(before):
        yield
        return
    heard = False

    def first(number: int, frame: FrameType | None) -> None:
        nonlocal heard
        heard = True
        signal.signal(signal.SIGINT, before)

    signal.signal(signal.SIGINT, first)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)
    if heard:
        signal.raise_signal(signal.SIGINT)
