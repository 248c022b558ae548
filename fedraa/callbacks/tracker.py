"""The base class of callbacks that write to a tracking service."""

import warnings
from abc import abstractmethod
from collections.abc import Callable, Mapping

from fedraa.callbacks.background_calls import BackgroundCalls
from fedraa.callbacks.callback import Callback
from fedraa.callbacks.events import Event, RunStart
from fedraa.errors import InputError, RunWarning, one_line

# Before its first task, a run waits at most this time for the tracking service.
START_TIMEOUT_S = 30.0
# After its last task, a run waits at most this time for the tracking service.
END_TIMEOUT_S = 10.0


class Tracker(Callback):
    """The base class of callbacks that write evaluations to a tracking service, such as MLflow.

    The methods `open`, `write_metrics`, `write_end` and `shut` are called one after another in a thread, so that a run
    does not wait for a slow service. It waits only at its start, for at most `START_TIMEOUT_S`, and at its end, for at
    most `END_TIMEOUT_S`.

    If the service fails at the start, the run does not start. If it fails later, the run continues with a warning and
    without this callback.
    """

    blocking = False
    _calls: BackgroundCalls | None = None

    @abstractmethod
    def open(self, run: RunStart) -> None:
        """Connect to the service at the start of a new or a resumed run."""

    @abstractmethod
    def write_metrics(self, step: int, t: float, metrics: Mapping[str, float]) -> None:
        """Write the metrics of an evaluation. `Callback.on_eval` documents the arguments."""

    def write_end(self, event: Event) -> None:
        """Send the result of the run to the service. `event` is the `end` line of the run's log."""

    @abstractmethod
    def shut(self) -> None:
        """Close the connection, if there is one."""

    def on_start(self, run: RunStart) -> None:
        # If the server dies, Ray starts it again, and this method is called again. The thread already exists then.
        if self._calls is None:
            self._calls = BackgroundCalls(type(self).__name__)
        problem = self._wait_for(lambda: self.open(run), START_TIMEOUT_S)
        if problem is not None:
            text = f"{type(self).__name__} cannot start: {problem}"
            raise InputError("callbacks", text, hint="correct its arguments, or leave it out")

    def on_eval(self, step: int, t: float, metrics: Mapping[str, float]) -> None:
        self._add(lambda: self.write_metrics(step, t, metrics))

    def on_end(self, event: Event) -> None:
        self._add(lambda: self.write_end(event))

    def on_close(self) -> None:
        self._warn_of_error()
        problem = self._wait_for(self.shut, END_TIMEOUT_S)
        if problem is not None:
            self._warn(f"{problem}; its last values may be missing")
        self._discard_calls()

    def _add(self, write: Callable[[], None]) -> None:
        """Queue a function for the background thread. Do nothing if the service has failed before."""
        self._warn_of_error()
        if self._calls is not None:
            self._calls.add(write)

    def _wait_for(self, function: Callable[[], None], timeout_s: float) -> str | None:
        """Call a function in the background thread and wait. Return the problem if it fails or takes too long."""
        if self._calls is None:
            return None
        ended = self._calls.add(function).wait(timeout_s)
        if not ended:
            self._discard_calls()
            return f"its service did not answer within {timeout_s:g} s"
        return self._take_error()

    def _warn_of_error(self) -> None:
        problem = self._take_error()
        if problem is not None:
            self._warn(f"{problem}; the run continues without it")

    def _take_error(self) -> str | None:
        """Return the error of an earlier call, or None. After an error, no more calls are made."""
        if self._calls is None or self._calls.error is None:
            return None
        error = self._calls.error
        self._discard_calls()
        return f"{type(error).__name__}: {one_line(error)}"

    def _discard_calls(self) -> None:
        if self._calls is not None:
            self._calls.close()
            self._calls = None

    def _warn(self, text: str) -> None:
        warnings.warn(f"callbacks: {type(self).__name__} failed: {text}", RunWarning, stacklevel=2)
