"""The base class of callbacks that write to a tracking service."""

import warnings
from abc import abstractmethod
from collections.abc import Callable, Mapping

from fedraa.callbacks.callback import Callback
from fedraa.callbacks.events import Event, RunStart
from fedraa.components.calls import one_line
from fedraa.errors import InputError, RunWarning


class Tracker(Callback):
    """The base class of callbacks that write evaluations to a tracking service, such as MLflow.

    If the service raises an error at the start of a run, the run does not start. If it raises an error later, the user
    gets a warning with the error, and the run continues without this callback.
    """

    blocking = False
    _has_failed = False

    @abstractmethod
    def open(self, run: RunStart) -> None:
        """Connect to the service at the start of a new or a resumed run."""

    @abstractmethod
    def write_metrics(self, step: int, t: float, metrics: Mapping[str, float]) -> None:
        """Write the metrics of an evaluation. `Callback.on_eval` documents the arguments."""

    def write_end(self, event: Event) -> None:
        """Write the `end` line of the log, which has the result of the run."""

    @abstractmethod
    def shut(self) -> None:
        """Close the connection, if there is one."""

    def on_start(self, run: RunStart) -> None:
        self._has_failed = False
        try:
            self.open(run)
        # The Python package of a tracking service can raise any exception.
        except Exception as error:
            self._has_failed = True
            problem = f"{type(self).__name__} cannot start: {type(error).__name__}: {one_line(error)}"
            raise InputError("callbacks", problem, hint="correct its arguments, or leave it out") from error

    def on_eval(self, step: int, t: float, metrics: Mapping[str, float]) -> None:
        self._attempt(lambda: self.write_metrics(step, t, metrics))

    def on_end(self, event: Event) -> None:
        self._attempt(lambda: self.write_end(event))

    def on_close(self) -> None:
        self._attempt(self.shut)

    def _attempt(self, write: Callable[[], None]) -> None:
        """Call a function that writes to the service. Do nothing after an earlier call has failed."""
        if self._has_failed:
            return
        try:
            write()
        except Exception as error:
            self._has_failed = True
            text = f"{type(self).__name__} failed with {type(error).__name__}: {one_line(error)}"
            warnings.warn(f"callbacks: {text}; the run continues without it", RunWarning, stacklevel=2)
