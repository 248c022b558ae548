"""Local training of one client: the loop, its settings, and the terms that change a gradient."""

from fedraa.client.local_training import LocalTraining
from fedraa.client.trainer import Trainer, Work

__all__ = ["LocalTraining", "Trainer", "Work"]
