"""What commands say while their libraries load and their run is made ready, where that takes long."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from fedraa.waiting import Waiting

if TYPE_CHECKING:
    from fedraa.callbacks import Callback

LOADING = "loading PyTorch"


@contextmanager
def waited(*, quiet: bool = False) -> Iterator[Waiting | None]:
    """Says what is being done, from loading PyTorch on; None, who says nothing, for a quiet command."""
    if quiet:
        yield None
        return
    with Waiting() as waiting:
        waiting.say(LOADING)
        yield waiting


def with_bar(callbacks: tuple[str, ...], waiting: Waiting | None) -> "tuple[str | Callback, ...]":
    """The callbacks and, unless the command is quiet, a bar that goes on from who is waiting."""
    from fedraa.callbacks import ProgressBar  # it takes seconds

    named = tuple(name for name in callbacks if name != "progress-bar")
    return callbacks if waiting is None else (*named, ProgressBar(waiting))
