"""Models for the methods that cannot train every model."""

from typing import Any

from torch import nn

import fedraa as fl
from fedraa.aggregation.low_rank import LowRank
from fedraa.composition.registry import find_method
from fedraa.methods.depthfl import FirstBlocks
from fedraa.submodels.personal_layers import BATCH_NORM


def batch_norm(classes: int) -> nn.Module:
    """Return a small model with batch norm, for samples of any shape."""
    layers = (nn.LazyLinear(8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, classes))
    return nn.Sequential(nn.Flatten(), *layers)


def adapters(classes: int) -> nn.Module:
    """Return a small model with low-rank adapters, for samples of any shape."""
    layers = (nn.Flatten(), nn.AdaptiveAvgPool1d(16), nn.Linear(16, 8), nn.ReLU(), nn.Linear(8, classes))
    return fl.lora(nn.Sequential(*layers), rank=4, merge=True)


def needed_model(method: str) -> dict[str, Any]:
    """Return the fields of a model that the method can train, if it cannot train every model, and else no fields."""
    parts = find_method(method)
    if BATCH_NORM in parts.local.personal_layers:
        return {"model": "needed_models:batch_norm", "hidden": (200,)}
    if isinstance(parts.submodel, FirstBlocks):
        return {"model": "mlp-exits", "hidden": (8, 8)}
    if isinstance(getattr(parts.update, "aggregator", None), LowRank):
        return {"model": "needed_models:adapters", "hidden": (200,)}
    return {}
