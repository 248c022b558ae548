"""Callbacks, which receive the events of a run and can end it."""

from fedraa.callbacks.callback import Callback
from fedraa.callbacks.early_stopping import EarlyStopping
from fedraa.callbacks.events import Event, Limits, Progress, RunStart
from fedraa.callbacks.mlflow import MLflow
from fedraa.callbacks.progress_bar import ProgressBar
from fedraa.callbacks.progress_log import ProgressLog
from fedraa.callbacks.writers import CSV, TensorBoard, WandB
from fedraa.components.registry import ComponentRegistry

__all__ = [
    "CALLBACKS",
    "CSV",
    "Callback",
    "EarlyStopping",
    "Event",
    "Limits",
    "MLflow",
    "Progress",
    "ProgressBar",
    "ProgressLog",
    "RunStart",
    "TensorBoard",
    "WandB",
]

CALLBACKS: ComponentRegistry[Callback] = ComponentRegistry(
    "callbacks",
    ("on_eval",),
    {
        "early-stopping": EarlyStopping,
        "tensorboard": TensorBoard,
        "wandb": WandB,
        "mlflow": MLflow,
        "csv": CSV,
        "progress-bar": ProgressBar,
    },
    base="Callback",
)
