"""Reports: one page of tables and plots from run directories, and exports to TensorBoard and Weights & Biases."""

from fedraa.report.report import report
from fedraa.report.writers import to_tensorboard, to_wandb

__all__ = ["report", "to_tensorboard", "to_wandb"]
