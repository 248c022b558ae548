"""What a callback is: who is told what happens in a run, and may end it."""

from collections.abc import Mapping
from typing import ClassVar

from fedraa.callbacks.events import Event, Progress, RunStart


class Callback:
    """Told of a run in the user's own process, in the order of its log; every hook does nothing unless overridden.

    The calls and their values are the same on both engines and with any number of workers. `on_dispatch`,
    `on_commit`, `on_drop`, `on_round`, `on_fault` and `on_eval` may return a true value: the run ends, exactly there,
    with the reason "callback". What is in flight is forgotten; the model is evaluated, if it is not yet. The rest of
    what one step recorded (a commit and its round) is still told, and so are evaluations that the end waits for.

        class Enough(fl.Callback):
            def on_eval(self, step, t, metrics):
                return metrics["accuracy"] > 0.9

    A callback keeps nothing in checkpoints, and is no part of what a run is. A run that is resumed calls `on_start`
    with `resumed`, then the hooks with all that is before the checkpoint (answers do not count), then with what is
    new: who sets up its state in `on_start` is where it was. That is so, too, where a server on Ray has died and is
    started again. One that raises ends the run, which can be gone on with.
    """

    waits: ClassVar[bool] = True
    """Whether the run waits for the answers of the hooks overridden, so as to end just where it is asked to.

    For who only looks on, False costs less on Ray, and evaluations go on beside the run; answers do not count then.
    With True and an `on_eval`, each evaluation is waited for before the run goes on. That is settled when a run
    starts: one that was started without is told of evaluations as late as its log has them.
    """

    def on_prepare(self, doing: str | None) -> None:
        """What is done before a run trains, such as "reading digits"; None: the run starts, or was refused.

        Said before `on_start`, and on Ray again after it, while the cluster and its workers start.
        """

    def on_start(self, run: RunStart) -> None:
        """Before all else, and again where a run is gone on with."""

    def on_dispatch(self, event: Event) -> bool | None:
        """A task was sent to a client; the fields are those of the `dispatch` line in events.jsonl."""
        return None

    def on_commit(self, event: Event) -> bool | None:
        """A client's update was taken in: a `commit` line."""
        return None

    def on_drop(self, event: Event) -> bool | None:
        """A client's task came to nothing by its own fault: a `drop` line."""
        return None

    def on_round(self, event: Event) -> bool | None:
        """A round was closed: a `round` line."""
        return None

    def on_fault(self, event: Event) -> bool | None:
        """Something went wrong and was dealt with: a `fault` line. Equal runs may have different faults."""
        return None

    def on_eval(self, step: int, t: float, metrics: Mapping[str, float]) -> bool | None:
        """The model as of server step `step`, at `t` (s on the run's clock), was evaluated; NaN: not finite."""
        return None

    def on_progress(self, progress: Progress) -> None:
        """How far the run is, sampled a few times a second: for progress bars. Its times and values are not exact."""

    def on_end(self, event: Event) -> None:
        """The run has ended and its directory is complete: the `end` line. Not called if it was stopped or failed."""

    def on_close(self) -> None:
        """Last of all, however the run ended: close files, stop displays."""
