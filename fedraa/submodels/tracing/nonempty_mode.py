"""A torch mode in which every expert of a mixture of experts gets at least one row and runs."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode

FINDS = frozenset(("argwhere", "nonzero", "where"))
PICKS = frozenset(("getitem", "masked_select", "setitem"))


class NonemptyMode(TorchFunctionMode):
    """A torch mode for searches and boolean masks: if one would select nothing, it selects the first position.

    A search is a call of `argwhere`, `nonzero` or `where`.

    Attributes:
        fills: True to select the first position. With False, the mode changes nothing.
        filled: True after the first such selection.
    """

    def __init__(self, fills: bool = True) -> None:
        super().__init__()
        self.fills = fills
        self.filled = False

    def __torch_function__(
        self, func: Callable[..., Any], types: Iterable[type], args: Any = (), kwargs: Any = None
    ) -> Any:
        name = getattr(func, "__name__", "").strip("_")
        if not self.fills or name not in FINDS | PICKS:
            return func(*args, **(kwargs or {}))
        if name in PICKS and len(args) > 1:
            args = (args[0], self._fill_mask(args[1]), *args[2:])
        out = func(*args, **(kwargs or {}))
        if name in PICKS or (name == "where" and not isinstance(out, tuple)):
            return out
        if isinstance(out, tuple):
            return tuple(map(self._fill_places, out))
        return self._fill_places(out)

    def _fill_mask(self, index: Any) -> Any:
        """Return the index. In a mask that selects nothing, the first value becomes True."""
        if type(index) is tuple:
            return tuple(map(self._fill_mask, index))
        if not isinstance(index, Tensor) or index.dtype != torch.bool or index.is_meta:
            return index
        if not index.numel() or index.any():
            return index
        self.filled = True
        first = torch.zeros_like(index)
        first[(0,) * first.dim()] = True
        return first

    def _fill_places(self, places: Tensor) -> Tensor:
        """Return the positions that a search found, or the first position if it found none."""
        if len(places):
            return places
        self.filled = True
        return places.new_zeros((1, *places.shape[1:]))
