"""Models for the methods that cannot train every model."""

from typing import Any

from torch import nn

from fedraa.composition.registry import find_method
from fedraa.submodels.personal_layers import BATCH_NORM


def batch_norm(classes: int) -> nn.Module:
    """Return a small model with batch norm, for samples of any shape."""
    layers = (nn.LazyLinear(8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, classes))
    return nn.Sequential(nn.Flatten(), *layers)


def needed_model(method: str) -> dict[str, Any]:
    """Return the fields of a model with batch norm if the method needs one, and else no fields."""
    if BATCH_NORM not in find_method(method).local.personal_layers:
        return {}
    return {"model": "needed_models:batch_norm", "hidden": (200,)}
