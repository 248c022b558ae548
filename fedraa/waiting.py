"""Show the current step of long work as a line in a terminal, or as log lines."""

import logging
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from threading import Event, Lock, Thread, Timer
from typing import TextIO

from rich.console import Console
from rich.status import Status

# Shorter work has no display.
DISPLAY_DELAY_S = 2.0
SILENCE_S = 30.0

logger = logging.getLogger("fedraa")


def write_line(text: str, stream: TextIO | None = None) -> None:
    """Write a line to the stream, by default stderr.

    If the stream is closed or on a full disk, the line is lost, because a run must not end with its log.
    """
    stream = stream or sys.stderr
    if stream is None:
        return
    with suppress(OSError, ValueError):
        stream.write(f"{text}\n")
        stream.flush()


class _Lines(logging.Handler):
    """A handler that prints log records as plain lines, as `write_line` does.

    Warnings go to stderr. Other records go to stdout if `to_stdout` is True, otherwise also to stderr.
    """

    def __init__(self, *, to_stdout: bool) -> None:
        super().__init__()
        self._to_stdout = to_stdout

    def emit(self, record: logging.LogRecord) -> None:
        stream = sys.stderr
        if self._to_stdout and record.levelno < logging.WARNING:
            stream = sys.stdout
        if stream is not None:
            write_line(self.format(record), stream)


class _Printing:
    """The current handler that prints log records, and the number of runs that use it."""

    def __init__(self) -> None:
        self.lock = Lock()
        self.users = 0
        self.handler: _Lines | None = None
        self.level = logging.NOTSET


_printing = _Printing()


@contextmanager
def printed_log(*, to_stdout: bool = False) -> Iterator[None]:
    """Print the records of the logger `fedraa` in the `with` block. If the logger has handlers, print nothing.

    Records below the logger's own level are not printed.
    """
    with _printing.lock:
        _printing.users += 1
        if _printing.handler is None and not logger.hasHandlers():
            _printing.handler = _Lines(to_stdout=to_stdout)
            _printing.level = logger.level
            logger.addHandler(_printing.handler)
            if logger.level == logging.NOTSET:
                logger.setLevel(logging.INFO)
    try:
        yield
    finally:
        with _printing.lock:
            _printing.users -= 1
            if not _printing.users and _printing.handler is not None:
                logger.removeHandler(_printing.handler)
                logger.setLevel(_printing.level)
                _printing.handler = None


class Heartbeat:
    """A logger that prefixes each line with the seconds since `began`.

    After `SILENCE_S` seconds without a line, it logs the text that `doing` returns.
    """

    def __init__(self, doing: Callable[[], str], began: float | None = None) -> None:
        self._doing = doing
        self._last = time.monotonic()
        self._began = self._last if began is None else began
        self._over = Event()
        Thread(target=self._log_silence, name="fedraa-heartbeat", daemon=True).start()

    def log(self, text: str) -> None:
        self._last = time.monotonic()
        logger.info("[%.1f s] %s", self._last - self._began, text)

    def close(self) -> None:
        """Stop the log lines."""
        self._over.set()

    def _log_silence(self) -> None:
        while not self._over.wait(max(0.0, self._last + SILENCE_S - time.monotonic())):
            if time.monotonic() >= self._last + SILENCE_S:
                self.log(self._doing())


class Waiting:
    """A display of the current work. It appears after `patience` seconds and stays until `end_display`.

    In a terminal the display is a line that disappears at the end. Elsewhere, if `logged` is True, the current work is
    logged every `SILENCE_S` seconds.
    """

    def __init__(self, patience: float = DISPLAY_DELAY_S, *, logged: bool = False) -> None:
        self._lock = Lock()
        self._doing = "starting"
        self._over = False
        self._status: Status | None = None
        self._timer = Timer(patience, self._show_status)
        self._timer.daemon = True
        self._timer.start()
        self._heartbeat: Heartbeat | None = None
        if logged and not is_shown():
            self._heartbeat = Heartbeat(lambda: self._doing)

    def say(self, doing: str) -> None:
        """Set the description of the current work."""
        with self._lock:
            self._doing = doing
            if self._status is not None:
                self._status.update(doing)

    def end_display(self) -> None:
        """Erase the line when the work is done."""
        self._timer.cancel()
        if self._heartbeat is not None:
            self._heartbeat.close()
        with self._lock:
            self._over = True
            if self._status is not None:
                self._status.stop()
                self._status = None

    def _show_status(self) -> None:
        with self._lock:
            console = Console()
            if not self._over and console.is_terminal and not console.is_jupyter:
                self._status = Status(self._doing, console=console)
                self._status.start()


def is_shown() -> bool:
    """Return True in a terminal or a notebook, in which a line can be updated."""
    console = Console()
    return console.is_terminal or console.is_jupyter
