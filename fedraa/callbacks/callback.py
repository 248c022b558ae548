"""The base class of callbacks."""

from collections.abc import Mapping
from typing import ClassVar

from fedraa.callbacks.events import Event, Progress, RunStart


class Callback:
    """An object that receives the events of a run in the user's process, in the order of the log.

    A subclass overrides the hooks (the methods `on_...`) that it needs. All other hooks do nothing. The calls and their
    arguments are the same on both engines and with any number of workers.

    The hooks `on_dispatch`, `on_commit`, `on_drop`, `on_round`, `on_fault` and `on_eval` may return True. Then the run
    ends at this event with the reason "callback". Tasks in flight are discarded. The last model is evaluated unless its
    evaluation has already been requested. The callbacks still receive the remaining events of the same step and the
    results of all evaluations.

        class Enough(fl.Callback):
            def on_eval(self, step, t, metrics):
                return metrics["accuracy"] > 0.9

    Checkpoints and the run's configuration do not contain callbacks. A resumed run first calls `on_start` with
    `RunStart.resumed` set to True. It then calls the hooks of all events before the checkpoint again, and ignores their
    return values. After that it delivers new events. Therefore a callback that initializes its state in `on_start` has
    the same state as at the checkpoint. The same calls happen when fedraa restarts a dead server on Ray. An exception
    in a callback ends the run; the run can be resumed.
    """

    blocking: ClassVar[bool] = True
    """True if the run waits for the return values of the overridden hooks, so that it can end at the exact event.

    If it is True and the callback overrides `on_eval`, the run waits for each evaluation before it continues. If it is
    False, the run ignores return values and continues with training during an evaluation, and calls cost less on Ray.
    An evaluation is then delivered at its position in the log, which may be after later steps. The value is read when a
    run starts.
    """

    def on_prepare(self, doing: str | None) -> None:
        """Receive a description of the current work before training, such as "reading digits".

        None means that the preparations are over, because training starts or an error was raised. The hook is called
        before `on_start`. On Ray it is also called after `on_start`, while the cluster and its workers start.
        """

    def on_start(self, run: RunStart) -> None:
        """Receive the facts about the run before its first event. A resumed run calls the hook again."""

    def on_dispatch(self, event: Event) -> bool | None:
        """Receive a task that was sent to a client, with the fields of its `dispatch` line in events.jsonl."""
        return None

    def on_commit(self, event: Event) -> bool | None:
        """Receive an update that the server accepted from a client, with the fields of its `commit` line."""
        return None

    def on_drop(self, event: Event) -> bool | None:
        """Receive a task that failed because of its client, with the fields of its `drop` line."""
        return None

    def on_round(self, event: Event) -> bool | None:
        """Receive a completed round, with the fields of its `round` line."""
        return None

    def on_fault(self, event: Event) -> bool | None:
        """Receive a fault after which the run continues, such as a worker's death, with the fields of its `fault` line.

        Faults of the machines are not part of the simulation, so two runs with the same seed may have different faults.
        """
        return None

    def on_eval(self, step: int, t: float, metrics: Mapping[str, float]) -> bool | None:
        """Receive the metrics of an evaluation.

        Args:
            step: Number of the server step after which the model was evaluated.
            t: The time of that step on the run's clock.
            metrics: The metrics by name. NaN stands for any value that is not finite.
        """
        return None

    def on_progress(self, progress: Progress) -> None:
        """Receive the progress of the run a few times per second, for progress bars.

        The calls depend on real time, so they differ between runs with the same seed.
        """

    def on_end(self, event: Event) -> None:
        """Receive the `end` line of the log after all files are written. It is not called if the run stops or fails."""

    def on_close(self) -> None:
        """Close files and displays. This is always the last call, even if the run fails."""
