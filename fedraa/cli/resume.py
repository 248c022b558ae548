"""The command `fedraa resume`."""

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import tyro

from fedraa.cli.status_line import add_progress_bar, show_status_line
from fedraa.config.experiment import CHANGEABLE
from fedraa.quick_imports import quick_imports


@dataclass(frozen=True)
class Resume:
    """Resume a run from its last checkpoint, or continue an ended run up to a larger limit."""

    run: tyro.conf.Positional[Path]
    """Run directory."""
    updates: int | None = None
    """End after this number of server updates, which must exceed the run's limit (default: the run's limit)."""
    rounds: int | None = None
    """End after this number of rounds, which must exceed the run's limit (default: the run's limit)."""
    time: float | None = None
    """End at this time on the run's clock, in time units, which must exceed the run's limit (default: the run's
    limit)."""
    target_accuracy: float | None = None
    """End when the test accuracy reaches this value, which must exceed the run's target (default: the run's target)."""
    target: str | None = None
    """End when a metric reaches a value, METRIC:VALUE, better than the run's target (default: the run's target)."""
    engine: Literal["ray", "local"] | None = None
    """Engine: worker processes on Ray, or on this machine alone (default: the run's engine)."""
    workers: int | None = None
    """Number of worker processes (default: the run's number)."""
    address: str | None = None
    """Address of a running Ray cluster (default: the run's address)."""
    device: Literal["auto", "cpu", "cuda"] | None = None
    """Device on which the workers train (default: the run's device)."""
    data_dir: Path | None = None
    """Folder of the data set's files (default: the run's folder)."""
    quiet: bool = False
    """Print neither progress nor results."""
    callbacks: tuple[str, ...] = ()
    """Callbacks, as in `fedraa run`, which first receive the earlier events of the run (default: none)."""
    trust: bool = False
    """Import the custom model and components that the run directory names."""
    restarts: int = 0
    """Maximum number of times that the run resumes on a new local cluster after Ray failed."""

    def __call__(self) -> None:
        fields = {name: value for name, value in vars(self).items() if name in CHANGEABLE and value is not None}
        with show_status_line(quiet=self.quiet) as waiting:
            with quick_imports():
                from fedraa.api import resume
                from fedraa.cli.display import print_run

            callbacks = add_progress_bar(self.callbacks, waiting)
            history = resume(
                self.run,
                callbacks=callbacks,
                trust=self.trust,
                restarts=self.restarts,
                **fields,
            )
        if not self.quiet:
            print_run(history)
