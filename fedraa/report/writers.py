"""Exports of runs to TensorBoard and Weights & Biases."""

from collections.abc import Iterator, Sequence
from pathlib import Path

from fedraa.callbacks import Limits, RunStart, TensorBoard, WandB
from fedraa.report.runs import Run, load_groups
from fedraa.rundir.event_log import TIMES


def to_tensorboard(runs: Sequence[Path], directory: Path) -> None:
    """Write the evaluations of each run as one TensorBoard run.

    Raises ValueError if the package is missing.
    """
    for group in load_groups(runs):
        for run in group.runs:
            writer = TensorBoard(directory, f"{group.slug}-{run.seed}")
            writer.on_start(_start_event(run))
            for step, t, wall, metrics in _evaluation_rows(run):
                writer.write(step, {**metrics, "t": t}, wall)
            writer.on_close()


def to_wandb(runs: Sequence[Path], project: str) -> None:
    """Send the evaluations of each run as one Weights & Biases run.

    Runs that differ only in their seed are in one group.

    Raises ValueError if the package is missing.
    """
    for group in load_groups(runs):
        for run in group.runs:
            writer = WandB(project, f"{group.label}-{run.seed}", group.label)
            writer.on_start(_start_event(run))
            for step, t, _, metrics in _evaluation_rows(run):
                writer.on_eval(step, t, metrics)
            if run.ended:
                writer.on_end(run.summary)
            writer.on_close()


def _start_event(run: Run) -> RunStart:
    limits = Limits.of(run.config["resolved"]["limits"])
    return RunStart(run.history.experiment, run.directory, limits, False, run.metric_spec)


def _evaluation_rows(run: Run) -> Iterator[tuple[int, float, float, dict[str, float]]]:
    """Yield the step, the run's time, the real seconds since the start, and the metrics of every evaluation."""
    names = [name for name in run.evals.columns if name not in TIMES]
    for row in run.evals.to_dict("records"):
        yield int(row["step"]), float(row["t"]), float(row["wall"]), {name: float(row[name]) for name in names}
