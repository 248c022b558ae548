"""fedraa: one model, many unequal devices."""

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from fedraa.api import resume, run
    from fedraa.callbacks import CSV, Callback, EarlyStopping, ProgressBar, TensorBoard, WandB
    from fedraa.config.experiment import Experiment
    from fedraa.data import Dataset
    from fedraa.rundir.history import History

__all__ = [
    "CSV",
    "Callback",
    "Dataset",
    "EarlyStopping",
    "Experiment",
    "History",
    "ProgressBar",
    "TensorBoard",
    "WandB",
    "resume",
    "run",
]

_CALLBACKS = ("CSV", "Callback", "EarlyStopping", "ProgressBar", "TensorBoard", "WandB")
_HOMES = {
    "Dataset": "data",
    "Experiment": "config.experiment",
    "History": "rundir.history",
    "resume": "api",
    "run": "api",
    **dict.fromkeys(_CALLBACKS, "callbacks"),
}


def __getattr__(name: str) -> object:
    """Public names load on first use: torch and pandas take seconds that `fedraa --help` need not wait for."""
    if name not in _HOMES:
        raise AttributeError(f"module 'fedraa' has no attribute {name!r}")
    return getattr(import_module(f"fedraa.{_HOMES[name]}"), name)
