"""Replacement of sizes in a module's code, such as `self.heads` in `x.view(b, t, self.heads, 16)`.

A cut changes the number of heads, so the code of a submodel would pass a wrong size. The tracer records each call that
passes such a size. In a submodel, a torch mode replaces the size by the one that fits the width of the submodel.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import accumulate, pairwise
from types import FrameType
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

Place = tuple[tuple[str, int], ...]
"""The place of a call in a module's code: a function name and a position for each stack frame up to `forward`."""


class SizeFormula(NamedTuple):
    """A size in the code as a linear function of the widths, such as 1 + 2 * widths[0].

    Attributes:
        fixed: The constant, such as 1.
        times: Pairs of a group's index and the factor of the group's width, such as (0, 2).
    """

    fixed: int
    times: tuple[tuple[int, int], ...]

    def of(self, widths: Sequence[int]) -> int:
        """Return the value of the formula for a submodel that keeps `widths[g]` units of each group g."""
        return self.fixed + sum(times * widths[group] for group, times in self.times)

    def keep_groups(self, kept: Mapping[int, int], full: Sequence[int]) -> SizeFormula:
        """Return the formula for a model in which only some groups can be cut. All other groups have their full widths.

        Args:
            kept: The new index of each group that can still be cut, by its old index.
            full: Number of units of each group.
        """
        fixed = self.fixed + sum(times * full[group] for group, times in self.times if group not in kept)
        return SizeFormula(fixed, tuple((kept[group], times) for group, times in self.times if group in kept))


class Resize(NamedTuple):
    """The sizes in one call, such as a reshape. They depend on the widths of the submodel.

    Attributes:
        dim: The dimension of the argument that is cut.
        outs: The call turns the dimension `dim` into these dimensions of its result. The first of them is cut. Empty
            for a slicing call.
        numbers: The formulas of the sizes. Empty for `_grouped_mm`, because `grouped_product` replaces it in submodels.
        mixed: True if one size is a product, such as a width times the number of samples.
    """

    dim: int
    outs: tuple[int, ...]
    numbers: tuple[SizeFormula, ...]
    mixed: bool

    def keep_groups(self, kept: Mapping[int, int], full: Sequence[int]) -> Resize:
        """Return the sizes for a model in which only some groups can be cut. See `SizeFormula.keep_groups`."""
        return self._replace(numbers=tuple(number.keep_groups(kept, full) for number in self.numbers))


Sizes = Mapping[Place, Resize]
"""The sizes in one module's code that a cut must change, by the place of the call."""


class CallSizes(NamedTuple):
    """The sizes that one call, such as a reshape, has in a submodel (`numbers`) and in the full module (`full`).

    `dim`, `outs` and `mixed` have the same values as in `Resize`.
    """

    dim: int
    outs: tuple[int, ...]
    numbers: tuple[int, ...]
    full: tuple[int, ...]
    mixed: bool


ZERO_MAKERS = frozenset(("new_zeros", "zeros"))
GROUPED = "_grouped_mm"
_SHAPED = frozenset(("expand", "reshape", "view"))
# Functions that return a slice of their argument.
SLICERS = frozenset(("getitem", "narrow", "split"))
RESIZED = _SHAPED | SLICERS | ZERO_MAKERS | {GROUPED, "unflatten"}


def name_of(func: Callable[..., Any]) -> str:
    """Return the name of a torch function: `add` for `torch.add`, `Tensor.add_` and `+`."""
    name: str = getattr(func, "__name__", "")
    # Python calls `__get__` for a property such as `Tensor.T`.
    if name == "__get__":
        name = getattr(getattr(func, "__self__", None), "__name__", "")
    if name.startswith("__"):
        return name.strip("_")
    return name.removesuffix("_")


def find_place(frame: FrameType | None) -> tuple[nn.Module, Place] | None:
    """Return the innermost module that is running and the place in its code, or None outside of modules."""
    steps = list[tuple[str, int]]()
    while frame is not None:
        steps.append((frame.f_code.co_qualname, frame.f_lasti))
        if frame.f_code.co_name == "forward" and frame.f_code.co_varnames:
            module = frame.f_locals.get(frame.f_code.co_varnames[0])
            if isinstance(module, nn.Module):
                return module, tuple(steps)
        frame = frame.f_back
    return None


def slice_ranges(
    name: str, args: Sequence[Any], kwargs: Mapping[str, Any], dim: int, units: np.ndarray
) -> list[tuple[int, int]] | None:
    """Return the index ranges of dimension `dim` that a slicing call selects by numbers, as in `x[:, 2:5]`.

    The list is empty if the call has no numbers for `dim`. The result is None for a slice with a step.

    Args:
        name: Name of the function.
        args: Positional arguments of the call.
        kwargs: Keyword arguments of the call.
        dim: The dimension.
        units: For each index of this dimension, the unit (such as a hidden unit) to which it belongs.
    """
    size = len(units)
    if name != "getitem" and _find_dim(name, args, kwargs) != dim:
        return []
    if name == "split":
        sizes = _find_argument(args, kwargs, 1, "split_size_or_sections", "split_size")
        if isinstance(sizes, int):
            sizes = [min(sizes, size - start) for start in range(0, size, sizes)]
        return list(pairwise((0, *accumulate(sizes))))
    if name == "narrow":
        start = int(_find_argument(args, kwargs, 2, "start")) % size
        length = int(_find_argument(args, kwargs, 3, "length"))
        return [(0, start), (start, start + length)]
    at, index = _find_slice(args, dim)
    part = index[at]
    if not isinstance(part, slice):
        return []
    start, stop, step = part.indices(size)
    if step != 1:
        is_even = start < step and stop == size and size % step == 0
        if is_even and (units.reshape(-1, step) == units[::step, None]).all():
            return []
        return None
    if part.start is None and part.stop is None:
        return []
    return [(0, start), (0, stop)]


def find_cut_numbers(
    sizes: Mapping[str, Sizes], widths: Sequence[int], full: Sequence[int]
) -> dict[str, dict[Place, CallSizes]]:
    """Return the sizes that a submodel needs in calls, by the name of the module and the place of the call.

    For example, `x.view(b, t, self.heads, 16)` needs the number of heads of the submodel. The result is empty if the
    submodel is the full module.

    Args:
        sizes: The formulas of the sizes, by the name of the module and the place of the call.
        widths: Number of units of each group in the submodel.
        full: Number of units of each group in the full module.
    """
    by_module: dict[str, dict[Place, CallSizes]] = {}
    if tuple(widths) == tuple(full):
        return by_module
    for module, places in sizes.items():
        for place, resize in places.items():
            numbers = tuple(number.of(widths) for number in resize.numbers)
            in_full = tuple(number.of(full) for number in resize.numbers)
            call_sizes = CallSizes(resize.dim, resize.outs, numbers, in_full, resize.mixed)
            by_module.setdefault(module, {})[place] = call_sizes
    return by_module


def resize_layer(layer: nn.Module, sizes: Mapping[Place, CallSizes]) -> None:
    """Replace a layer's class by a subclass that corrects the sizes in the layer's calls, such as a reshape."""
    kind = type(layer)
    layer.__class__ = type(kind.__name__, (_Resized, kind), {"_sizes": sizes})


class _Resized(nn.Module):
    _sizes: Mapping[Place, CallSizes]

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        with _Resizing(self, self._sizes):
            return super().forward(*args, **kwargs)


class _Resizing(TorchFunctionMode):
    """A torch mode that corrects the sizes in one module's calls."""

    def __init__(self, module: nn.Module, sizes: Mapping[Place, CallSizes]) -> None:
        super().__init__()
        self._module = module
        self._sizes = sizes

    def __torch_function__(
        self, func: Callable[..., Any], types: Iterable[type], args: Any = (), kwargs: Any = None
    ) -> Any:
        name = name_of(func)
        kwargs = kwargs or {}
        if name not in RESIZED:
            return func(*args, **kwargs)
        caller = find_place(sys._getframe(1))
        if caller is None or caller[0] is not self._module or caller[1] not in self._sizes:
            return func(*args, **kwargs)
        if name == GROUPED:
            return grouped_product(*args, **kwargs)
        args, kwargs = _follow_widths(name, args, kwargs, self._sizes[caller[1]])
        return func(*args, **kwargs)


def grouped_product(x: Tensor, weight: Tensor, *, offs: Tensor, **_: object) -> Tensor:
    """Multiply the rows of each expert by its matrix. `torch._grouped_mm` does not support all widths and precisions.

    Args:
        x: Rows `[s, in]`, sorted by expert.
        weight: The matrix of each expert, `[experts, in, out]`.
        offs: The end of each expert's rows in x, `[experts]`.
    """
    ends = offs.tolist()
    return torch.cat([x[a:b] @ w for a, b, w in zip([0, *ends], ends, weight, strict=False)])


def _follow_widths(
    name: str, args: Any, kwargs: Mapping[str, Any], call_sizes: CallSizes
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Return the arguments of a call, after the sizes of the submodel have replaced those of the full module."""
    numbers = call_sizes.numbers
    # A call that creates zeros needs only a changed shape, because it reads no values of a tensor.
    if name in ZERO_MAKERS:
        _, sizes = _find_shape(name, args, kwargs)
        sizes[call_sizes.outs[0]] = numbers[0]
        owner = args[: int(name == "new_zeros")]
        return (*owner, sizes), {key: value for key, value in kwargs.items() if key != "size"}
    x: Tensor = args[0]
    if name == "unflatten":
        at, sizes = _find_shape(name, args, kwargs)
        _put_numbers(sizes, [out - at for out in call_sizes.outs], call_sizes, x.size(at))
        return (x, at, sizes), {}
    if name in _SHAPED:
        _, sizes = _find_shape(name, args, kwargs)
        _put_numbers(sizes, call_sizes.outs, call_sizes, x.numel())
        return (x, sizes), {}
    if name == "split":
        return (x, numbers, call_sizes.dim), {}
    if name == "narrow":
        return (x, call_sizes.dim, *numbers), {}
    at, index = _find_slice(args, call_sizes.dim)
    part = index[at]
    start, stop = numbers
    index[at] = slice(None if part.start is None else start, None if part.stop is None else stop, part.step)
    return (x, tuple(index)), {}


def _put_numbers(sizes: list[int], places: Sequence[int], call_sizes: CallSizes, elements: int) -> None:
    """Replace sizes in a shape by those of a submodel. A size of -1 stays, because torch computes it.

    Args:
        sizes: The shape, changed in place.
        places: Indices in `sizes` of the sizes to replace.
        call_sizes: The sizes of this submodel.
        elements: Number of elements of the tensor.
    """
    first, *inner = places
    if not 0 <= first < len(sizes):
        # The call passes no size for the cut dimension.
        return
    if sizes[first] != -1 and call_sizes.mixed:
        sizes[first] = sizes[first] * call_sizes.numbers[0] // call_sizes.full[0]
    elif sizes[first] != -1:
        sizes[first] = call_sizes.numbers[0]
    # If the product of the sizes is wrong, the code has also computed another size from the full width, such as the
    # features of a head.
    if math.prod(sizes) != elements:
        for place, number in zip(inner, call_sizes.numbers[1:], strict=True):
            if place < len(sizes) and sizes[place] != -1:
                sizes[place] = number
    if -1 not in sizes:
        sizes[first] = -1


def _find_shape(name: str, args: Sequence[Any], kwargs: Mapping[str, Any]) -> tuple[int, list[int]]:
    """Return the dimension that the first size in a call's shape argument describes, and the shape argument.

    For `x.unflatten(1, (2, 8))`, these are 1 and [2, 8].
    """
    if name == "unflatten":
        dim = _find_argument(args, kwargs, 1, "dim")
        return dim % args[0].dim(), list(_find_argument(args, kwargs, 2, "sizes"))
    sizes = args[int(name != "zeros") :] or _find_argument(args, kwargs, 1, "shape", "size")
    if isinstance(sizes[0], Sequence):
        sizes = sizes[0]
    return 0, list(sizes)


def _find_dim(name: str, args: Sequence[Any], kwargs: Mapping[str, Any]) -> int:
    """Return the dimension that a call splits or narrows, counted from 0."""
    place = {"split": 2}.get(name, 1)
    dim = _find_argument(args, {"dim": 0, **kwargs}, place, "dim")
    return int(dim % args[0].dim())


def _find_slice(args: Sequence[Any], dim: int) -> tuple[int, list[Any]]:
    """Return the position in `index` that belongs to dimension `dim` of `x[index]`, and `index` as a list."""
    index = list(args[1]) if isinstance(args[1], tuple) else [args[1]]
    place = next((place for place, at in iterate_index(index, args[0].dim()) if at == dim), None)
    if place is None:
        return 0, [slice(None)]
    return place, index


def iterate_index(index: Sequence[Any], dims: int) -> Iterator[tuple[int, int]]:
    """Yield the position of each part of `index` in `x[index]`, and the dimension of x to which the part belongs.

    Args:
        index: Numbers, slices, integer tensors, None and `...`. The last two belong to no dimension.
        dims: The number of dimensions of x.
    """
    dim = 0
    for place, item in enumerate(index):
        if item is Ellipsis:
            dim = dims - sum(i is not None for i in index[place + 1 :])
        elif item is not None:
            yield place, dim
            dim += 1


def _find_argument(args: Sequence[Any], kwargs: Mapping[str, Any], place: int, *names: str) -> Any:
    """Return a call's argument, passed by position or by any of these names.

    Args:
        args: The positional arguments.
        kwargs: The keyword arguments.
        place: Position of the argument.
        names: Names of the argument in all versions of torch.
    """
    if len(args) > place:
        return args[place]
    return next(kwargs[name] for name in names if name in kwargs)
