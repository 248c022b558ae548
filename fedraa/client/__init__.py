"""How a client trains: one loop, and small gradient terms."""

from fedraa.client.evaluator import Evaluator
from fedraa.client.solver import Solver
from fedraa.client.trainer import Trainer, Work
from fedraa.client.worker_spec import WorkerSpec, choose_device

__all__ = ["Evaluator", "Solver", "Trainer", "Work", "WorkerSpec", "choose_device"]
