"""Snapshots of a module's values except its trainable parameters, and comparisons of snapshots."""

from collections.abc import Mapping
from copy import deepcopy
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from torch import Tensor, nn

from fedraa.models.computed_weights import is_spectral
from fedraa.models.statistics import copy_buffers

# A snapshot does not contain the attributes that every nn.Module has.
MODULE_ATTRIBUTES = frozenset(vars(nn.Module()))


@dataclass
class Snapshot:
    """Copies of a module's values except its trainable parameters.

    Attributes:
        buffers: The buffers by name.
        frozen: The parameters without a gradient, by name.
        attributes: Other attributes of the module and its submodules, by name.
        class_attributes: Tensors and arrays that are attributes of the modules' classes, by name.
    """

    buffers: dict[str, Tensor | None]
    frozen: dict[str, Tensor]
    attributes: dict[str, Any] = field(default_factory=dict)
    class_attributes: dict[str, Any] = field(default_factory=dict)

    @classmethod
    def of(cls, module: nn.Module, *, frozen: bool = True) -> "Snapshot":
        """Return a snapshot of the module's current values, with frozen parameters only if `frozen` is True."""
        fixed: dict[str, Tensor] = {}
        if frozen:
            fixed = {name: p.detach().clone() for name, p in module.named_parameters() if not p.requires_grad}
        attributes: dict[str, Any] = {}
        for prefix, part in module.named_modules():
            if not is_spectral(part):
                own = {name: value for name, value in vars(part).items() if name not in MODULE_ATTRIBUTES}
                attributes |= _copy_comparable(prefix, own)
        return cls(copy_buffers(module), fixed, attributes, _copy_class_arrays(module))

    def changed(self, after: "Snapshot") -> dict[str, list[str]]:
        """Return, for each field such as `buffers`, the names of the values in `after` that are new or different."""
        return {
            kind: [name for name, value in values.items() if not is_same(getattr(self, kind).get(name, self), value)]
            for kind, values in vars(after).items()
        }


def _copy_class_arrays(module: nn.Module) -> dict[str, Any]:
    """Return copies of the arrays that are class attributes of the submodules. torch's classes are skipped."""
    arrays: dict[str, Any] = {}
    for prefix, part in module.named_modules():
        for kind in reversed(type(part).__mro__):
            if kind.__module__.startswith("torch."):
                continue
            own = {name: value for name, value in vars(kind).items() if not name.startswith("__")}
            arrays |= _copy_comparable(prefix, {name: value for name, value in own.items() if _holds_arrays(value)})
    return arrays


def _copy_comparable(prefix: str, values: Mapping[str, Any]) -> dict[str, Any]:
    """Return copies of the comparable values, with the keys `prefix.NAME`."""
    return {f"{prefix}.{name}".lstrip("."): deepcopy(value) for name, value in values.items() if _is_comparable(value)}


def _holds_arrays(value: object) -> bool:
    if isinstance(value, Mapping):
        return any(map(_holds_arrays, value.values()))
    if isinstance(value, (list, tuple)):
        return any(map(_holds_arrays, value))
    return isinstance(value, (Tensor, np.ndarray))


def _is_comparable(value: object) -> bool:
    """Return True for a comparable value: a tensor, array, number or text, or a collection of them."""
    if isinstance(value, nn.Parameter):
        return False
    if isinstance(value, Tensor):
        return value.is_leaf or not value.requires_grad
    if isinstance(value, Mapping):
        return all(map(_is_comparable, value.values()))
    if isinstance(value, (list, tuple, set, frozenset)):
        return all(map(_is_comparable, value))
    return value is None or isinstance(value, (bool, int, float, str, np.ndarray))


def is_same(before: object, after: object) -> bool:
    """Return True if two values are equal. In tensors, NaN equals NaN."""
    if isinstance(before, Tensor) and isinstance(after, Tensor):
        if before.shape != after.shape or before.dtype != after.dtype:
            return False
        return bool(((before == after) | (before.isnan() & after.isnan())).all())
    if isinstance(before, np.ndarray) or isinstance(after, np.ndarray):
        return np.array_equal(np.asarray(before), np.asarray(after))
    if isinstance(before, Mapping) and isinstance(after, Mapping):
        return before.keys() == after.keys() and all(is_same(before[key], after[key]) for key in before)
    if isinstance(before, (list, tuple)) and isinstance(after, (list, tuple)):
        return len(before) == len(after) and all(map(is_same, before, after))
    return type(before) is type(after) and before == after
