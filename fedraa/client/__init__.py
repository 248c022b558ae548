"""Local training of a client: its settings, the training loop, optimizers, gradient transforms and compression."""

from fedraa.client.local_training import LocalTraining
from fedraa.client.trainer import Work

__all__ = ["LocalTraining", "Work"]
