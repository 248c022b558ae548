"""The status line of a command while libraries load and its run is prepared."""

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING

from fedraa.waiting import Waiting, is_shown, printed_log

if TYPE_CHECKING:
    from fedraa.callbacks import Callback

LOADING = "loading PyTorch"


@contextmanager
def show_status_line(*, quiet: bool = False) -> Iterator[Waiting | None]:
    """Show the current work, starting with loading PyTorch; yield None, without output, for a quiet command.

    Without a terminal the status is logged, and log records go to stdout meanwhile.
    """
    if quiet:
        yield None
        return
    with ExitStack() as stack:
        if not is_shown():
            stack.enter_context(printed_log(to_stdout=True))
        waiting = stack.enter_context(Waiting(logged=True))
        waiting.say(LOADING)
        yield waiting


def with_bar(callbacks: tuple[str, ...], waiting: Waiting | None) -> "tuple[str | Callback, ...]":
    """Return the callbacks and, unless the command is quiet, a progress bar that replaces the status line.

    Without a terminal the run logs its progress instead.
    """
    # The import takes seconds.
    from fedraa.callbacks import ProgressBar

    if waiting is None:
        return callbacks
    other_callbacks = tuple(name for name in callbacks if name != "progress-bar")
    if not is_shown():
        waiting.end_display()
        return other_callbacks
    return (*other_callbacks, ProgressBar(waiting))
