"""Runs handed on to TensorBoard and to Weights & Biases, whose packages are imported on use alone."""

from collections.abc import Sequence
from pathlib import Path

from fedraa.report.runs import load
from fedraa.rundir.event_log import EVAL_COLUMNS

SCALARS = (*EVAL_COLUMNS[3:], "bytes", "t")


def to_tensorboard(runs: Sequence[Path], directory: Path) -> None:
    """One TensorBoard run per run, by server step; ValueError if the package is missing."""
    try:
        from torch.utils.tensorboard import SummaryWriter
    except ImportError as error:
        raise ValueError(f"tensorboard: not to be had ({error}); pip install tensorboard first") from None
    for group in load(runs):
        for run in group.runs:
            with SummaryWriter(str(directory / f"{group.slug}-{run.seed}")) as writer:
                for row in run.evals.itertuples():
                    for name in SCALARS:
                        writer.add_scalar(name, getattr(row, name), row.step, walltime=row.wall)


def to_wandb(runs: Sequence[Path], project: str) -> None:
    """One Weights & Biases run per run, by server step, seeds in one group; ValueError if the package is missing."""
    try:
        import wandb
    except ImportError as error:
        raise ValueError(f"wandb: not to be had ({error}); pip install wandb first") from None
    for group in load(runs):
        for run in group.runs:
            with wandb.init(
                project=project, group=group.label, name=f"{group.label}-{run.seed}", config=run.config
            ) as writer:
                for row in run.evals.to_dict("records"):
                    writer.log({name: row[name] for name in SCALARS}, step=int(row["step"]))
                writer.summary.update(run.summary)
