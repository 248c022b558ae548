"""The base class of callbacks."""

from collections.abc import Mapping
from typing import ClassVar

from fedraa.callbacks.events import Event, Progress, RunStart


class Callback:
    """The base class of callbacks, which receive the events of a run in the order of the log.

    A subclass overrides the hooks (the methods `on_...`) that it needs. All other hooks do nothing. The calls and their
    arguments are the same on both engines and with any number of workers.

    The hooks `on_dispatch`, `on_commit`, `on_drop`, `on_round`, `on_fault` and `on_eval` may return True. Then the run
    ends at this event with the reason "callback". Tasks in flight are discarded, and the last model is evaluated. The
    callbacks still receive the other events of this step and the results of all evaluations.

        class Enough(fl.Callback):
            def on_eval(self, step, t, metrics):
                return metrics["accuracy"] > 0.9

    Checkpoints do not contain callbacks. A resumed run calls `on_start` with `RunStart.resumed` set to True. Then it
    calls the hooks of all events before the checkpoint again and ignores their return values. A callback that
    initializes its state in `on_start` therefore has the state at the checkpoint. The same calls happen when fedraa
    restarts a dead server on Ray. An exception in a callback ends the run, which can be resumed.
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

        None means that the preparations are over. The hook is called before `on_start`, and on Ray also after it, while
        the workers start.
        """

    def on_start(self, run: RunStart) -> None:
        """Receive the facts about the run before its first event. A resumed run calls this hook again."""

    def on_dispatch(self, event: Event) -> bool | None:
        """Receive a task that was sent to a client: the `dispatch` line of events.jsonl."""
        return None

    def on_commit(self, event: Event) -> bool | None:
        """Receive an update that the server accepted: the `commit` line of events.jsonl."""
        return None

    def on_drop(self, event: Event) -> bool | None:
        """Receive a task that failed because of its client: the `drop` line of events.jsonl."""
        return None

    def on_round(self, event: Event) -> bool | None:
        """Receive a completed round: the `round` line of events.jsonl."""
        return None

    def on_fault(self, event: Event) -> bool | None:
        """Receive a fault of a worker after which the run continues: the `fault` line of events.jsonl.

        Faults of the machines are not simulated, so two runs with the same seed may have different faults.
        """
        return None

    def on_eval(self, step: int, t: float, metrics: Mapping[str, float]) -> bool | None:
        """Receive the metrics of an evaluation.

        Args:
            step: The number of the server step after which the model was evaluated.
            t: The time of that step on the run's clock.
            metrics: The metrics by name. NaN stands for any value that is not finite.
        """
        return None

    def on_progress(self, progress: Progress) -> None:
        """Receive the progress of the run a few times per second, for progress bars.

        The calls depend on real time, so they differ between runs with the same seed.
        """

    def on_end(self, event: Event) -> None:
        """Receive the `end` line of events.jsonl. A run that stopped or failed has no such line."""

    def on_close(self) -> None:
        """Close files and displays. This is always the last call, even if the run fails."""
