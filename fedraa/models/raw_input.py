"""A trained model that accepts the user's raw inputs."""

from typing import Any

import torch
from torch import Tensor, nn

from fedraa.data.scaling import ChannelScaling, Scaling, along_channels
from fedraa.data.transforms import Transforms
from fedraa.models.forward import forward


class RawInputModel(nn.Module):
    """A trained model for raw inputs. It scales and transforms them as the run did, and then calls `model`.

    Its input is a batch of raw samples as tensors or arrays: images of floats or bytes, rows of features, or tokens.
    """

    def __init__(self, model: nn.Module, scaling: Scaling, fixed: Transforms) -> None:
        super().__init__()
        self.model = model
        self.scalings = nn.ModuleList()
        self._scaling = self._add_scaling(scaling)
        self._fixed = fixed

    def forward(self, *inputs: Any, **named: Any) -> Any:
        x: Any = named or inputs
        if len(inputs) == 1 and not named:
            x = inputs[0]
        if isinstance(x, dict | tuple):
            return forward(self.model, self._scale_input(self._scaling, x, several=True))
        x = self._scale_input(self._scaling, x, several=False)
        return forward(self.model, self._fixed.apply_fixed(x))

    def _add_scaling(self, scaling: Scaling) -> Any:
        """Append each scaling in the tree `scaling` to `self.scalings`, and return a tree of the indices."""
        if isinstance(scaling, dict):
            return {name: self._add_scaling(part) for name, part in scaling.items()}
        if isinstance(scaling, tuple):
            return tuple(self._add_scaling(part) for part in scaling)
        if scaling is None:
            return None
        self.scalings.append(_Scaled(scaling))
        return len(self.scalings) - 1

    def _scale_input(self, scaling: Any, x: Any, *, several: bool) -> Any:
        """Return the inputs in the types and scales of the run.

        Args:
            scaling: Tree of indices into `scalings`; None for no scaling.
            x: Raw inputs.
            several: True if the model has several inputs.
        """
        if isinstance(x, dict):
            return {
                name: self._scale_input(_pick_scaling(scaling, name), part, several=several) for name, part in x.items()
            }
        if isinstance(x, tuple):
            return tuple(
                self._scale_input(_pick_scaling(scaling, i), part, several=several) for i, part in enumerate(x)
            )
        x = _as_input(torch.as_tensor(x), several=several)
        if scaling is None:
            return x
        return self.scalings[scaling](x)


class _Scaled(nn.Module):
    """The scaling of one input by the mean and the standard deviation of each channel."""

    mean: Tensor
    std: Tensor

    def __init__(self, scaling: ChannelScaling) -> None:
        super().__init__()
        self.register_buffer("mean", torch.from_numpy(scaling.mean.copy()))
        self.register_buffer("std", torch.from_numpy(scaling.std.copy()))

    def forward(self, x: Tensor) -> Tensor:
        scaled: Tensor = (x - along_channels(self.mean, x.ndim)) / along_channels(self.std, x.ndim)
        return scaled


def _pick_scaling(scaling: Any, key: Any) -> Any:
    if scaling is None:
        return None
    return scaling[key]


def _as_input(x: Tensor, *, several: bool) -> Tensor:
    """Convert an input to the type that it has during training, as `training_type` defines it for arrays."""
    if several and x.dtype is torch.bool:
        return x
    is_integer = not (x.is_floating_point() or x.dtype in (torch.bool, torch.uint8))
    if is_integer and (several or x.ndim == 2):
        return x.long()
    return x.float()
