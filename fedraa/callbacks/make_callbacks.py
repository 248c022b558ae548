"""Make the callbacks of a run from the user's objects, classes, names and paths."""

from collections.abc import Mapping, Sequence

from fedraa.callbacks import CALLBACKS, Callback, ProgressBar, ProgressLog
from fedraa.callbacks.callback_list import CallbackList, refuse_wrong_hooks
from fedraa.callbacks.failure_warnings import FailureWarnings
from fedraa.errors import InputError
from fedraa.waiting import is_shown

Callbacks = Sequence[Callback | type[Callback] | str | Mapping[str, object]]
"""The callbacks of a run: objects, classes, names (`early-stopping(patience=3)`) or paths (`my_module:Name`)."""


def make_callbacks(sources: Callbacks, *, quiet: bool, place: str = "") -> CallbackList:
    """Return the user's callbacks. Add a ProgressLog if the run is not quiet and shows no progress bar.

    Args:
        sources: The user's callbacks: objects, classes, names or paths.
        quiet: True to log nothing.
        place: A prefix of log lines, such as "run 2 of 6", if there are several runs.
    """
    if isinstance(sources, str | Mapping) or not isinstance(sources, Sequence):
        raise InputError("callbacks", got=sources, expected="a list")
    callbacks = [CALLBACKS.resolve(source) for source in sources]
    for callback in callbacks:
        refuse_wrong_hooks(callback)
    has_bar = is_shown() and any(isinstance(callback, ProgressBar) for callback in callbacks)
    if not quiet and not has_bar:
        callbacks.append(ProgressLog(place))
    return CallbackList([*callbacks, FailureWarnings()])
