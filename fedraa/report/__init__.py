"""Reports about runs as web pages, and exports to TensorBoard and Weights & Biases."""

from fedraa.report.report import report
from fedraa.report.writers import to_tensorboard, to_wandb

__all__ = ["report", "to_tensorboard", "to_wandb"]
