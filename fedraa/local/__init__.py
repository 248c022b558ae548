"""How a client trains: one loop, and small gradient terms."""

from fedraa.local.evaluator import Evaluator
from fedraa.local.recipe import Recipe, choose_device
from fedraa.local.solver import Solver
from fedraa.local.trainer import Trainer, Work

__all__ = ["Evaluator", "Recipe", "Solver", "Trainer", "Work", "choose_device"]
