"""Local training of one client: the loop, its settings, and the terms that change a gradient."""

from fedraa.client.local_training import Solver
from fedraa.client.trainer import Trainer, Work

__all__ = ["Solver", "Trainer", "Work"]
