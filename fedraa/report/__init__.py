"""From run directories to one page of tables and figures, and to other people's dashboards."""

from fedraa.report.report import report
from fedraa.report.writers import to_tensorboard, to_wandb

__all__ = ["report", "to_tensorboard", "to_wandb"]
