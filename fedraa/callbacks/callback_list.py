"""The callbacks of a run, and how the run delivers events to them."""

import inspect
import time
from collections.abc import Sequence
from contextlib import ExitStack
from copy import deepcopy
from typing import Protocol

from fedraa.callbacks.callback import Callback
from fedraa.callbacks.events import Event, Progress, RunStart, read_metrics
from fedraa.errors import CallbackRaised, InputError, suggest_closest

OTHER_HOOKS = ("on_prepare", "on_start", "on_progress", "on_close")
HOOKS = {kind: f"on_{kind}" for kind in ("dispatch", "commit", "drop", "round", "fault", "eval", "end")}
# Hooks of other libraries, each with the hook of fedraa that an error suggests.
USUAL_HOOKS = {
    "on_batch_end": "on_commit",
    "on_epoch_end": "on_round",
    "on_evaluate": "on_eval",
    "on_evaluation": "on_eval",
    "on_fit_end": "on_end",
    "on_fit_start": "on_start",
    "on_round_end": "on_round",
    "on_train_begin": "on_start",
    "on_train_end": "on_end",
    "on_train_start": "on_start",
    "on_validation_end": "on_eval",
}
# Minimum seconds between two calls of `on_progress`.
PROGRESS_SECONDS = 0.2


class EventSink(Protocol):
    """The interface through which a run delivers its events."""

    subscribed: frozenset[str]
    """The kinds of events that a callback handles."""
    blocking: frozenset[str]
    """The kinds of events after which the run waits until the callbacks return."""

    def tell(self, event: Event, *, past: bool = False) -> str | None:
        """Deliver an event. Return the name of a callback that asks to end the run, or None.

        `past` is True if the event is repeated in a resumed run. Raises CallbackRaised if a callback raised an
        exception.
        """

    def progress(self, progress: Progress) -> None:
        """Deliver the progress of the run, after every commit."""


class CallbackList:
    """Callbacks that are called in this process, in the order of the list."""

    def __init__(self, callbacks: Sequence[Callback] = (), progress_seconds: float = PROGRESS_SECONDS) -> None:
        self._callbacks = tuple(callbacks)
        self._subscribers = {kind: self._callbacks_with(hook) for kind, hook in HOOKS.items()}
        self._on_progress = self._callbacks_with("on_progress")
        self._progress_seconds = progress_seconds
        self._progress_at = 0.0
        self.subscribed = frozenset(kind for kind, callbacks in self._subscribers.items() if callbacks)
        self.blocking = frozenset(
            kind for kind in self.subscribed if kind != "end" and any(map(_waits_for_answer, self._subscribers[kind]))
        )

    def prepare(self, doing: str | None) -> None:
        """Deliver a description of the current preparation, or None when the preparations are over."""
        for callback in self._callbacks_with("on_prepare"):
            callback.on_prepare(doing)

    def start(self, run: RunStart) -> None:
        for callback in self._callbacks_with("on_start"):
            callback.on_start(run)

    def tell(self, event: Event, *, past: bool = False) -> str | None:
        asking = None
        # All callbacks receive the event, even if one of them asks to end the run or changes its copy.
        for callback in self._subscribers[str(event["kind"])]:
            if _call_hook(callback, deepcopy(event)):
                asking = asking or type(callback).__name__
        return asking

    def progress(self, progress: Progress) -> None:
        """Deliver the progress, unless the last delivery was less than `progress_seconds` ago."""
        if not self._on_progress or time.monotonic() < self._progress_at:
            return
        for callback in self._on_progress:
            try:
                callback.on_progress(progress)
            # A callback can raise any exception.
            except (Exception, SystemExit) as error:
                raise CallbackRaised(error) from error
        self._progress_at = time.monotonic() + self._progress_seconds

    def close(self) -> None:
        """Close all callbacks, even if one of them raises an exception."""
        with ExitStack() as stack:
            for callback in self._callbacks_with("on_close"):
                stack.callback(callback.on_close)

    def _callbacks_with(self, hook: str) -> list[Callback]:
        """Return the callbacks that override a hook, in their class or in the object. The others need no call."""
        return [callback for callback in self._callbacks if _overrides(callback, hook)]


def refuse_wrong_hooks(callback: object) -> None:
    """Raise InputError for a method `on_...` that is not a hook, or a hook that does not take the hook's arguments."""
    known = (*HOOKS.values(), *OTHER_HOOKS)
    for name in known:
        _check_parameters(callback, name)
    for name in dir(type(callback)):
        if name.startswith("on_") and name not in known and callable(getattr(type(callback), name)):
            problem = f"{type(callback).__name__} has the method {name}, which is not a hook"
            hint = suggest_closest(USUAL_HOOKS.get(name, name), known)
            raise InputError("callbacks", problem, expected=f"one of {', '.join(known)}", hint=hint)


def _check_parameters(callback: object, name: str) -> None:
    """Raise InputError if the callback has the hook `name` and cannot be called with the hook's arguments."""
    if not callable(getattr(callback, name, None)):
        return
    arguments = list(inspect.signature(getattr(Callback, name)).parameters)[1:]
    try:
        inspect.signature(getattr(callback, name)).bind(*arguments)
    except ValueError:
        # Some functions that are written in C have no signature.
        return
    except TypeError as error:
        problem = f"{type(callback).__name__}.{name} does not take the arguments of this hook ({error})"
        raise InputError("callbacks", problem, expected=f"def {name}({', '.join(['self', *arguments])})") from None


def _overrides(callback: Callback, hook: str) -> bool:
    nothing = getattr(Callback, hook)
    return hook in getattr(callback, "__dict__", ()) or getattr(type(callback), hook, nothing) is not nothing


def _waits_for_answer(callback: Callback) -> bool:
    return getattr(callback, "blocking", True)


def _call_hook(callback: Callback, event: Event) -> bool:
    """Call the hook of an event, and return True if the callback asks to end the run.

    Raises CallbackRaised if the hook raises an exception.
    """
    try:
        if event["kind"] == "eval":
            answer = callback.on_eval(int(str(event["step"])), float(str(event["t"])), read_metrics(event))
        else:
            answer = getattr(callback, HOOKS[str(event["kind"])])(event)
        return bool(answer) and _waits_for_answer(callback)
    # A callback can raise any exception.
    except (Exception, SystemExit) as error:
        raise CallbackRaised(error) from error
