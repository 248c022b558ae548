"""The forward pass of a model with one or several inputs."""

from collections.abc import Mapping
from typing import Any

from torch import nn


def forward(model: nn.Module, inputs: Any) -> Any:
    """Return the model's result. A dict is passed as keyword arguments, and a tuple as positional arguments."""
    if isinstance(inputs, Mapping):
        return model(**inputs)
    if isinstance(inputs, tuple):
        return model(*inputs)
    return model(inputs)
