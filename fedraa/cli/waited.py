"""What commands say while their libraries load and their run is made ready, where that takes long."""

from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from typing import TYPE_CHECKING

from fedraa.waiting import Waiting, is_shown, printed_log

if TYPE_CHECKING:
    from fedraa.callbacks import Callback

LOADING = "loading PyTorch"


@contextmanager
def waited(*, quiet: bool = False) -> Iterator[Waiting | None]:
    """Show what is being done, from loading PyTorch on; None, which shows nothing, for a quiet command.

    Without a terminal it is logged instead, and what is logged meanwhile goes to stdout.
    """
    if quiet:
        yield None
        return
    with nullcontext() if is_shown() else printed_log(to_stdout=True), Waiting(logged=True) as waiting:
        waiting.say(LOADING)
        yield waiting


def with_bar(callbacks: tuple[str, ...], waiting: Waiting | None) -> "tuple[str | Callback, ...]":
    """Return the callbacks and, unless the command is quiet, a bar that takes over from what is waiting.

    Without a terminal a run logs itself how far it is.
    """
    from fedraa.callbacks import ProgressBar  # it takes seconds

    named = tuple(name for name in callbacks if name != "progress-bar")
    if waiting is None:
        return callbacks
    if not is_shown():
        waiting.over()
        return named
    return (*named, ProgressBar(waiting))
