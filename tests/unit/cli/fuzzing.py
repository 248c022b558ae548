"""Helpers of the fuzz tests of the command line: a call of `main`, permitted outputs, and damaged files."""

import os
from collections.abc import Callable, Iterator
from contextlib import redirect_stderr, redirect_stdout
from io import StringIO
from pathlib import Path

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st

from fedraa.cli.main import main


def fuzz(examples: int) -> settings:
    """Return a decorator that tests with few examples, or with many."""
    allowed = [HealthCheck.function_scoped_fixture]
    return settings(max_examples=examples, suppress_health_check=allowed)


QUICK = ["--engine", "local", "--updates", "2", "--clients", "3", "--hidden", "8", "--local-steps", "1", "--quiet"]
PYTHON_ERROR_WORDS = ("Traceback", "Error:")


def run_command(arguments: list[str]) -> tuple[int, str]:
    """Return the exit code and the text on stderr. An exception from `main` fails the test."""
    err = StringIO()
    with redirect_stdout(StringIO()), redirect_stderr(err):
        code = main(arguments)
    return code, err.getvalue()


def add_quick_flags(words: list[str]) -> list[str]:
    """Return these arguments after the flags of QUICK that they lack, because a repeated flag is an error."""
    kept: list[str] = []
    for number, word in enumerate(QUICK):
        flag = word if word.startswith("--") else QUICK[number - 1]
        if flag not in words:
            kept.append(word)
    return [*kept, *words]


def is_one_sentence(text: str) -> bool:
    return (
        text.startswith("fedraa: ")
        and text.count("\n") == 1
        and text.endswith("\n")
        and not any(word in text for word in PYTHON_ERROR_WORDS)
    )


def has_result_or_error(code: int, text: str) -> bool:
    """Return True if a command succeeded, or failed with one error line. Lines with warnings do not count.

    Args:
        code: The exit code.
        text: The text on stderr.
    """
    lines = text.splitlines(keepends=True)
    errors = "".join(line for line in lines if not line.startswith("fedraa: warning: "))
    return (code == 0 and not errors) or (code in (1, 2) and is_one_sentence(errors))


def torn(content: bytes) -> st.SearchStrategy[bytes]:
    """Yield damaged contents of a file: empty, truncated, or with other bytes at some place."""

    def change(where: int, bytes_: bytes) -> bytes:
        return content[:where] + bytes_ + content[where + len(bytes_) :]

    place = st.integers(0, max(0, len(content) - 1))
    return (
        st.just(content)
        | place.map(lambda end: content[:end])
        | st.builds(change, place, st.binary(min_size=1, max_size=8))
    )


REPLACEMENTS: dict[str, Callable[[Path], object]] = {
    "missing": lambda path: None,
    "a directory": lambda path: path.mkdir(),
    "a named pipe": os.mkfifo,
    "a link to nothing": lambda path: path.symlink_to(path.with_name("nothing")),
    "other bytes": lambda path: path.write_bytes(b"\xff\x00" * 40),
}


def replace_file(path: Path) -> Iterator[str]:
    """Replace a file by things that cannot be read, one after another, and yield a name for each."""
    for kind, make in REPLACEMENTS.items():
        path.rmdir() if path.is_dir() else path.unlink(missing_ok=True)
        make(path)
        yield kind
