"""Experts that get no row of a small batch run all the same while a module is traced and tried."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode

FINDS = frozenset(("argwhere", "nonzero", "where"))
PICKS = frozenset(("getitem", "masked_select", "setitem"))


class Found(TorchFunctionMode):
    """Where data are such or such is at least at one place: searches find the first if none, and so do masks."""

    def __init__(self, fills: bool = True) -> None:
        """Without `fills` nothing is found where nothing is."""
        super().__init__()
        self.fills = fills
        self.filled = False  # whether there was none

    def __torch_function__(
        self, func: Callable[..., Any], types: Iterable[type], args: Any = (), kwargs: Any = None
    ) -> Any:
        name = getattr(func, "__name__", "").strip("_")
        if not self.fills or name not in FINDS | PICKS:
            return func(*args, **(kwargs or {}))
        if name in PICKS and len(args) > 1:
            index = args[1]
            args = (args[0], tuple(map(self._some, index)) if type(index) is tuple else self._some(index), *args[2:])
        out = func(*args, **(kwargs or {}))
        if name in PICKS or (name == "where" and not isinstance(out, tuple)):
            return out
        return tuple(map(self._first, out)) if isinstance(out, tuple) else self._first(out)

    def _some(self, index: Any) -> Any:
        if not isinstance(index, Tensor) or index.dtype != torch.bool or index.is_meta:
            return index
        if not index.numel() or index.any():
            return index
        self.filled = True
        first = torch.zeros_like(index)
        first[(0,) * first.dim()] = True
        return first

    def _first(self, places: Tensor) -> Tensor:
        if len(places):
            return places
        self.filled = True
        return places.new_zeros((1, *places.shape[1:]))
