"""A batch through a model, which may have several inputs."""

from collections.abc import Mapping
from typing import Any

from torch import nn


def forward(model: nn.Module, inputs: Any) -> Any:
    """What the model makes of a batch: of a dict by the names of its arguments, of a tuple in their order."""
    if isinstance(inputs, Mapping):
        return model(**inputs)
    return model(*inputs) if isinstance(inputs, tuple) else model(inputs)
