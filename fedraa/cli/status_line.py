"""The status line that a command shows while it loads libraries and prepares a run."""

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING

from fedraa.waiting import Waiting, is_shown, printed_log

if TYPE_CHECKING:
    from fedraa.callbacks import Callback

LOADING = "loading PyTorch"


@contextmanager
def show_status_line(*, quiet: bool = False) -> Iterator[Waiting | None]:
    """Show a status line during the block, and yield it. Its first text is `LOADING`.

    Without a terminal, the status is logged, and log records go to stdout. With `quiet`, the block gets None.
    """
    if quiet:
        yield None
        return
    with ExitStack() as stack:
        if not is_shown():
            stack.enter_context(printed_log(to_stdout=True))
        waiting = Waiting(logged=True)
        stack.callback(waiting.end_display)
        waiting.say(LOADING)
        yield waiting


def add_progress_bar(callbacks: tuple[str, ...], waiting: Waiting | None) -> "tuple[str | Callback, ...]":
    """Return the callbacks, with a progress bar that replaces the status line `waiting`.

    A quiet command (`waiting` is None) gets no progress bar. Without a terminal there is no progress bar either, and
    the run logs its progress.
    """
    # This import takes seconds.
    from fedraa.callbacks import ProgressBar

    if waiting is None:
        return callbacks
    other_callbacks = tuple(name for name in callbacks if name != "progress-bar")
    if not is_shown():
        waiting.end_display()
        return other_callbacks
    return (*other_callbacks, ProgressBar(waiting))
