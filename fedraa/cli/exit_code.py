"""What a command comes to: an exit code, and one sentence for every mistake."""

import signal
import sys
import traceback
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import TextIO

from fedraa.engine import stop_signals
from fedraa.errors import RunWarning

OURS = {"__main__", "actors", "benchmarks", "fedraa", "schedulers"}
THEIRS = {
    "matplotlib",
    "numpy",
    "pandas",
    "pydantic",
    "ray",
    "rich",
    "scipy",
    "sklearn",
    "torch",
    "torchvision",
    "tyro",
}
TERMINATED = "stopped by SIGTERM"
LIBRARIES = OURS | THEIRS | sys.stdlib_module_names  # whose modules are not the user's


@contextmanager
def terminable() -> Iterator[None]:
    """SIGTERM is as Ctrl-C, wherever nobody else takes it: while files are read, parts made, pages written."""
    is_free = signal.getsignal(signal.SIGTERM) is signal.SIG_DFL
    with stop_signals.terminable(_terminate) if is_free else nullcontext():
        yield


@contextmanager
def warnings_in_sentences() -> Iterator[None]:
    """Within, a warning about a run is one line for the user, without the place in the code that issued it."""
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
            sys.stderr.write(f"fedraa: warning: {message}\n")
        else:
            show(message, category, filename, lineno, file, line)

    with warnings.catch_warnings():
        warnings.showwarning = show_sentence
        yield


def _terminate() -> None:
    raise KeyboardInterrupt(TERMINATED)


def exit_code(command: Callable[[], object]) -> int:
    """Exit code 0; 1: a run failed, a log or a part is wrong; 2: a mistake in what was asked for; 130: Ctrl-C, or
    SIGTERM."""
    try:
        command()
    except ValueError as error:
        return _told(str(error), error, 2)
    except KeyboardInterrupt as error:
        if str(error) != TERMINATED:  # the line on which the terminal shows ^C
            sys.stderr.write("\n")
        return _told(str(error) or "interrupted", error, 130)
    except SystemExit as error:  # of --help, which is to be quick: what follows takes seconds to import
        if error.code == signal.SIGTERM:  # as Ray's handler has it, on a cluster between two runs
            return _told(TERMINATED, error, 130)
        raise
    except _failures() as error:
        return _told(str(error), error, 1)
    except OSError as error:
        return _told(f"{error.filename or 'the system'}: {error.strerror or error}", error, 2)
    except Exception as error:
        if (where := own_code(error)) is None:
            raise
        return _told(f"{where} failed with {type(error).__name__}: {error}", error, 1)
    return 0


def _told(what: str, error: BaseException, code: int) -> int:
    """Says what went wrong on one line, whatever the user's own words in it hold; returns the exit code."""
    said = " ".join("; ".join((what, *getattr(error, "__notes__", ()))).split())
    sys.stderr.write(f"fedraa: {said}\n")
    return code


def own_code(error: BaseException) -> str | None:
    """The innermost code of the user's own that an error has come through, and where it is; None if there is none."""
    own = [
        f"{frame.f_code.co_qualname} ({Path(frame.f_code.co_filename).name}, line {line})"
        for frame, line in traceback.walk_tb(error.__traceback__)
        if str(frame.f_globals.get("__name__")).partition(".")[0] not in LIBRARIES
    ]
    return own[-1] if own else None


def _failures() -> tuple[type[Exception], ...]:
    """What a run or a log may come to."""
    from fedraa.errors import Inconsistent, PromiseBroken, RunFailed

    return RunFailed, Inconsistent, PromiseBroken
