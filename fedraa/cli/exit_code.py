"""The exit code of a command, and the line that it prints about an error."""

import errno
import logging
import signal
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from typing import TextIO

from fedraa.components.user_code import find_user_code
from fedraa.engine import stop_signals
from fedraa.errors import Inconsistent, PromiseBroken, RunFailed, RunWarning
from fedraa.waiting import write_line

TERMINATED = "stopped by SIGTERM or SIGHUP"
# The names of fedraa's loggers. Their warnings are printed like a RunWarning.
LOGGERS = ("fedraa", "actors", "schedulers")


@contextmanager
def interrupt_on_termination() -> Iterator[None]:
    """Let SIGTERM and SIGHUP raise KeyboardInterrupt during the block, unless SIGTERM already has a handler."""
    is_free = signal.getsignal(signal.SIGTERM) is signal.SIG_DFL
    with stop_signals.stop_on_termination(_raise_interrupt) if is_free else nullcontext():
        yield


class _LoggedWarnings(logging.Handler):
    """A handler for warnings in the log that no other handler receives. It prints those of fedraa like a RunWarning.

    Args:
        default: The handler for warnings of other packages; None to print none of them.
    """

    def __init__(self, default: logging.Handler | None) -> None:
        super().__init__(logging.WARNING)
        self._default = default

    def emit(self, record: logging.LogRecord) -> None:
        if record.name.partition(".")[0] in LOGGERS:
            write_line(f"fedraa: warning: {record.getMessage()}")
        elif self._default is not None:
            self._default.handle(record)


@contextmanager
def warnings_in_sentences() -> Iterator[None]:
    """Print each RunWarning in the block as one line, without the code that issued it.

    Warnings in the log are printed in the same form, unless logging is configured before the warning.
    """
    show = warnings.showwarning

    def show_sentence(
        message: Warning | str,
        category: type[Warning],
        filename: str,
        lineno: int,
        file: TextIO | None = None,
        line: str | None = None,
    ) -> None:
        if issubclass(category, RunWarning):
            write_line(f"fedraa: warning: {message}")
        else:
            show(message, category, filename, lineno, file, line)

    default = logging.lastResort
    with warnings.catch_warnings():
        # The option `-W ignore` of Python must not hide the warnings of a run.
        warnings.simplefilter("default", RunWarning)
        warnings.showwarning = show_sentence
        logging.lastResort = _LoggedWarnings(default)
        try:
            yield
        finally:
            logging.lastResort = default


def _raise_interrupt() -> None:
    raise KeyboardInterrupt(TERMINATED)


def exit_code(command: Callable[[], object]) -> int:
    """Run a command and return its exit code.

    0: success. 1: a run failed, or a check of a log or a component failed. 2: the user made a mistake. 130: Ctrl-C,
        SIGTERM or SIGHUP stopped the command.
    """
    try:
        command()
    except ValueError as error:
        return _print_error(str(error), error, 2)
    except KeyboardInterrupt as error:
        # After Ctrl-C the terminal shows ^C on the current line.
        if str(error) != TERMINATED:
            write_line("")
        return _print_error(str(error) or "interrupted", error, 130)
    except (RunFailed, Inconsistent, PromiseBroken) as error:
        return _print_error(str(error), error, 1)
    except OSError as error:
        if error.errno == errno.ENOSPC and not hasattr(error, "__notes__"):
            error.add_note("free space on the disk, and run the command again")
        return _print_error(f"{error.filename or 'the system'}: {error.strerror or error}", error, 2)
    # An exception from the user's code is shown on one line. Any other exception is a bug and needs its traceback.
    except Exception as error:
        place = find_user_code(error)
        if place is None:
            raise
        return _print_error(f"{place} failed with {type(error).__name__}: {error}", error, 1)
    return 0


def _print_error(text: str, error: BaseException, code: int) -> int:
    """Print an error and its notes on one line, and return `code`."""
    line = " ".join("; ".join((text, *getattr(error, "__notes__", ()))).split())
    write_line(f"fedraa: {line}")
    return code
