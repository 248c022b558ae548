"""Scaling of inputs. Over the training samples, each channel then has mean 0 and variance 1."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from fedraa.data.tree import Array, Tree, map_tree
from fedraa.errors import InputError

BLOCK_VALUES = 2**24
"""Number of values in a block. Statistics are computed block by block, so that large arrays are not copied."""

Scaling = Tree
"""A ChannelScaling, or None if the input is not scaled. For several inputs, a dict or tuple of these."""


@dataclass(frozen=True, eq=False)
class ChannelScaling:
    """The mean and the standard deviation of each channel (dimension 1), float32 [channels].

    Inputs [n] have one channel.
    """

    mean: npt.NDArray[np.float32]
    std: npt.NDArray[np.float32]

    def apply(self, x: Array) -> npt.NDArray[np.float32]:
        """Return (x - mean) / std as a new array."""
        scaled = x.astype(np.float32)
        self.apply_in_place(scaled)
        return scaled

    def apply_in_place(self, x: npt.NDArray[np.float32]) -> None:
        """Replace the values of x by (x - mean) / std."""
        x -= along_channels(self.mean, x.ndim)
        x /= along_channels(self.std, x.ndim)


def along_channels(values: Any, ndim: int) -> Any:
    """Return `values` [channels] in a shape that broadcasts along dimension 1 of `ndim` dimensions."""
    if ndim < 2:
        return values.reshape(-1)
    return values.reshape((1, -1, *[1] * (ndim - 2)))


def measure_scaling(x_train: Tree) -> Scaling:
    """Return the scaling that gives each channel of these training inputs mean 0 and variance 1.

    Only floats and bytes are scaled. If the model has several inputs, an input with only the values 0 and 1 is a mask
    and is not scaled. Constant channels become 0. Samples that are not finite are ignored.
    """
    if isinstance(x_train, dict | tuple):
        return map_tree(_measure_unless_mask, x_train)
    return _measure_channels(x_train)


def apply_scaling(scaling: Scaling, x: Tree) -> Tree:
    """Return the scaled inputs. An input without a scaling is not copied."""
    if isinstance(scaling, dict):
        _check_names(scaling, x)
        return {name: apply_scaling(scaling[name], x[name]) for name in x}
    if isinstance(scaling, tuple):
        return tuple(apply_scaling(part, x[place]) for place, part in enumerate(scaling))
    if scaling is None:
        return x
    return scaling.apply(x)


def apply_scaling_in_place(scaling: Scaling, x: Tree) -> None:
    """Scale the inputs in place. Every input that has a scaling must be float32."""
    if isinstance(scaling, dict):
        for name, part in scaling.items():
            apply_scaling_in_place(part, x[name])
    elif isinstance(scaling, tuple):
        for part, inputs in zip(scaling, x, strict=True):
            apply_scaling_in_place(part, inputs)
    elif scaling is not None:
        scaling.apply_in_place(x)


def _check_names(scaling: dict[str, Scaling], x: Tree) -> None:
    expected = f"the inputs of other samples, {sorted(scaling)}"
    if not isinstance(x, dict):
        raise InputError("samples", got=x, expected=expected)
    if x.keys() != scaling.keys():
        raise InputError("samples", got=sorted(x), expected=expected)


def _is_scaled(x: Array) -> bool:
    return x.dtype.kind == "f" or x.dtype == np.uint8


def _is_mask(x: Array) -> bool:
    return _is_scaled(x) and all(((block == 0) | (block == 1)).all() for block in _iter_blocks(x))


def _measure_unless_mask(x: Array) -> ChannelScaling | None:
    if _is_mask(x):
        return None
    return _measure_channels(x)


def _measure_channels(x: Array) -> ChannelScaling | None:
    if not _is_scaled(x) or not len(x):
        return None
    axes = (0, *range(2, x.ndim))
    channels = x.shape[1] if x.ndim > 1 else 1
    count, total = 0, 0.0
    for block in _finite_blocks(x):
        total = total + block.sum(axis=axes, dtype=np.float64)
        count += block.size // channels
    if not count:
        return None
    mean = np.atleast_1d(np.asarray(total / count, np.float32))
    deviation = _channel_deviation(x, mean, count, np.float32)
    with np.errstate(over="ignore"):
        if not (np.isfinite(deviation) & (deviation > 0)).all():
            # Squares may be too large or too small for float32, but not for float64.
            deviation = _channel_deviation(x, mean, count, np.float64)
    deviation[deviation == 0] = 1.0
    return ChannelScaling(mean, deviation)


def _channel_deviation(x: Array, mean: Array, count: int, kind: Any) -> npt.NDArray[np.float32]:
    """Return the standard deviation of each channel.

    Args:
        x: The inputs.
        mean: The mean of each channel.
        count: The number of finite values per channel.
        kind: The floating-point type of the squares.
    """
    axes = (0, *range(2, x.ndim))
    total = np.zeros(1)
    with np.errstate(over="ignore"):
        for block in _finite_blocks(x):
            squares = np.square((block - along_channels(mean, x.ndim)).astype(kind, copy=False))
            total = total + squares.sum(axis=axes, dtype=np.float64)
        return np.sqrt(total / count).astype(np.float32)


def _iter_blocks(x: Array) -> Iterator[Array]:
    rows = max(1, BLOCK_VALUES * len(x) // x.size)
    for start in range(0, len(x), rows):
        yield x[start : start + rows]


def _finite_blocks(x: Array) -> Iterator[npt.NDArray[np.float32]]:
    """Yield the rows without NaN or infinity as float32, block by block."""
    for block in _iter_blocks(x):
        with np.errstate(over="ignore"):
            values = block.astype(np.float32, copy=False)
        # Computing a sum is faster than checking each value.
        if not np.isfinite(values.sum()):
            values = values[np.isfinite(values).reshape(len(values), -1).all(axis=1)]
        if len(values):
            yield values
