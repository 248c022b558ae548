"""fedraa: one model, many unequal devices."""

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from fedraa.api import run
    from fedraa.client.metrics import Metric
    from fedraa.config.experiment import Experiment
    from fedraa.data import Dataset, Partitioner
    from fedraa.rundir.history import History

__all__ = ["Dataset", "Experiment", "History", "Metric", "Partitioner", "run"]

_HOMES = {
    "Dataset": "data",
    "Experiment": "config.experiment",
    "History": "rundir.history",
    "Metric": "client.metrics",
    "Partitioner": "data",
    "resume": "api",
    "run": "api",
    **dict.fromkeys(("CSV", "Callback", "EarlyStopping", "ProgressBar", "TensorBoard", "WandB"), "callbacks"),
}


def __getattr__(name: str) -> object:
    """Public names load on first use: torch and pandas take seconds that `fedraa --help` need not wait for."""
    if name not in _HOMES:
        raise AttributeError(f"module 'fedraa' has no attribute {name!r}")
    return getattr(import_module(f"fedraa.{_HOMES[name]}"), name)
