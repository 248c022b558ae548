"""The base class of callbacks."""

from collections.abc import Mapping
from typing import ClassVar

from fedraa.callbacks.events import Event, Progress, RunStart


class Callback:
    """An object that receives the events of a run in the user's process, in the order of the log.

    Every hook does nothing unless a subclass overrides it. The calls and their values are the same on both engines and
    with any number of workers.

    The hooks `on_dispatch`, `on_commit`, `on_drop`, `on_round`, `on_fault` and `on_eval` may return a true value. Then
    the run ends at that event with the reason "callback". Tasks in flight are discarded, and the model is evaluated if
    it has not been. The other events of the same step and the results of pending evaluations are still delivered.

        class Enough(fl.Callback):
            def on_eval(self, step, t, metrics):
                return metrics["accuracy"] > 0.9

    A callback stores nothing in checkpoints and is not part of a run's configuration. A resumed run calls `on_start`
    with `resumed`, repeats the events before the checkpoint (return values are ignored), and then delivers new events.
    A callback that initializes its state in `on_start` therefore gets the state that it had at the checkpoint. The same
    happens when a dead server on Ray is restarted. An exception in a callback ends the run, which can be resumed.
    """

    blocking: ClassVar[bool] = True
    """True if the run waits for the return values of the overridden hooks, so that it can end at the exact event.

    With True and an `on_eval`, the run waits for each evaluation before it continues. With False, return values are
    ignored, calls cost less on Ray, and evaluations run beside the training. The value is read when a run starts. With
    False, an evaluation is delivered at its position in the log, which may be after later steps.
    """

    def on_prepare(self, doing: str | None) -> None:
        """Receive a description of the work before training, such as "reading digits", or None.

        None means that the run starts or was refused. The hook is called before `on_start`. On Ray it is also called
        after `on_start`, while the cluster and its workers start.
        """

    def on_start(self, run: RunStart) -> None:
        """Receive the start of the run, before all events. The hook is called again when the run is resumed."""

    def on_dispatch(self, event: Event) -> bool | None:
        """Receive a task that was sent to a client, with the fields of its `dispatch` line in events.jsonl."""
        return None

    def on_commit(self, event: Event) -> bool | None:
        """Receive a client's update that the server accepted, with the fields of its `commit` line."""
        return None

    def on_drop(self, event: Event) -> bool | None:
        """Receive a task that failed because of its client, with the fields of its `drop` line."""
        return None

    def on_round(self, event: Event) -> bool | None:
        """Receive a completed round, with the fields of its `round` line."""
        return None

    def on_fault(self, event: Event) -> bool | None:
        """Receive a handled fault, with the fields of its `fault` line. Equal runs may have different faults."""
        return None

    def on_eval(self, step: int, t: float, metrics: Mapping[str, float]) -> bool | None:
        """Receive the metrics of the model at server step `step`, at `t` (s on the run's clock).

        NaN stands for a value that is not finite.

        Args:
            step: The server step of the model.
            t: The time of that step, in s on the run's clock.
            metrics: The metrics by name.
        """
        return None

    def on_progress(self, progress: Progress) -> None:
        """Receive a progress sample, a few times per second, for progress bars. Its times and values are not exact."""

    def on_end(self, event: Event) -> None:
        """Receive the `end` line of a run with a complete directory. Stopped and failed runs do not call this hook."""

    def on_close(self) -> None:
        """Close files and displays. The call is the last one, regardless of how the run ended."""
