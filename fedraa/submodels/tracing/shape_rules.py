"""The tracer's rules for functions that move, join, reduce or transform elements."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from fedraa.submodels.resize import iterate_index
from fedraa.submodels.tracing.labels import are_element_labels, varies_along
from fedraa.submodels.tracing.product_rules import arguments_of
from fedraa.submodels.tracing.recorder import Recorder, iterate_tensors

_DIM_AT = dict.fromkeys(("linalg_norm", "linalg_vector_norm", "norm", "normalize", "topk"), 1)

_DEFAULT_DIMS = {"argsort": -1, "normalize": 1, "sort": -1, "topk": -1}

_VIEWS = {"view", "reshape", "reshape_as", "unflatten", "view_as"}

# These functions return the same parameter in another form.
_SAME_PARAMETER = {"T", "bfloat16", "clone", "contiguous", "double", "float", "half", "mT", "movedim", "permute"} | {
    "swapaxes",
    "swapdims",
    "t",
    "to",
    "transpose",
    "type_as",
}


def label_elementwise(r: Recorder, name: str, out: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    """Label an elementwise result. Elements that the function combines, such as x[i] and y[i], become one unit."""
    labels = torch.zeros((), dtype=torch.int64)
    for x in iterate_tensors((args, {k: v for k, v in kwargs.items() if k != "out"})):
        labels = r.ties.merge_labels(labels, r.labels(x))
    r.put(out, labels.expand(out.shape))


def label_scaled(r: Recorder, name: str, out: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    """Label an elementwise product or quotient. A parameter times a number counts as the parameter."""
    x, *factors = args
    if r.name(x) and out is not x and not any(True for _ in iterate_tensors(factors)):
        r.record_derived(x, out, range(x.dim()))
    else:
        label_elementwise(r, name, out, args, kwargs)


def label_same(r: Recorder, name: str, out: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    """Label the result like the first argument. A copy of a parameter counts as the parameter."""
    x = args[0]
    if not (name in _SAME_PARAMETER and r.name(x)):
        r.put(out, r.labels(x))
    elif out is not x:
        r.record_derived(x, out, range(x.dim()))


def label_copied(r: Recorder, name: str, out: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    """Label an overwritten tensor like its new values. An overwritten view or parameter is never cut."""
    x, source = args[:2]
    if x._is_view() or r.name(x):
        r.give_up(name, out, args, kwargs)
    else:
        r.put(out, r.labels(source).expand(out.shape))


def label_assigned(r: Recorder, name: str, out: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    """Label the elements of x after the assignment `x[index] = value`. A view or a parameter x is never cut.

    All elements along a dimension become one unit if the assignment changes only some of them.
    """
    x, index, value = args
    places = _split_index(index)
    if x._is_view() or r.name(x) or any(map(_lacks_values, places)):
        r.give_up(name, out, args, kwargs)
        return
    labels = r.labels(x)
    if any(map(_is_mask, places)):
        replaced = _label_masked(r, labels, places)
    else:
        replaced = labels[index]
        for place, dim in iterate_index(places, labels.dim()):
            size = labels.shape[dim]
            if not isinstance(places[place], slice) or places[place].indices(size) != (0, size, 1):
                r.ties.tie_along(labels, [dim], "the code picks some units by their index")
    if replaced is None:
        r.give_up(name, out, args, kwargs)
        return
    if isinstance(value, Tensor):
        r.ties.tie(replaced, r.labels(value))
    r.put(x, labels)


def label_constant(r: Recorder, name: str, out: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    """Record that a new constant tensor is never cut."""
    r.track_uncut(out)


def label_moved(r: Recorder, name: str, out: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    """Move the labels in the same way as the function moves the elements."""
    x, *values = args
    if r.name(x) and isinstance(out, Tensor):
        dims = _derived_dims(x, name, values, kwargs)
        if dims is not None:
            r.record_derived(x, out, dims)
            return
    moved = _move_labels(r.labels(x), name, values, kwargs)
    for tensor, labels in zip(iterate_tensors(out), iterate_tensors(moved), strict=True):
        r.put(tensor, labels)
        if name in _VIEWS:
            r.record_view(labels)


def label_rolled(r: Recorder, name: str, out: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    """Label the result of a roll. All elements along a rolled dimension become one unit."""
    x, _, dims = arguments_of(args, kwargs, "input", "shifts", "dims")
    labels = r.labels(x)
    r.ties.tie_along(labels, _named_dims(labels, dims), "a roll changes the order of the units")
    label_moved(r, name, out, args, kwargs)


def _derived_dims(x: Tensor, name: str, values: Sequence[Any], kwargs: Mapping[str, Any]) -> list[int | None] | None:
    """Return, for each dimension of the function's result, the dimension of the parameter `x` from which it comes.

    A new dimension gives None. If the function does more than move, add or remove dimensions, return None, not a list.
    """
    if name in _SAME_PARAMETER:
        # Dimension d of this tensor has size d. The sizes of the result then show the new order.
        sizes = torch.empty(tuple(range(x.dim())), device="meta")
        return list(_move_labels(sizes, name, values, kwargs).shape)
    dims: list[int | None] = list(range(x.dim()))
    if name == "squeeze":
        squeezed = _named_dims(x, (*values, kwargs.get("dim"))[0])
        return [d for d in dims if d not in squeezed or x.size(d) != 1]
    if name == "unsqueeze":
        at = (*values, kwargs.get("dim"))[0]
        dims.insert(at % (x.dim() + 1), None)
        return dims
    if name == "getitem":
        return _pick_dims(dims, values[0])
    return None


def _pick_dims(dims: list[int | None], index: Any) -> list[int | None] | None:
    """Return the dimensions of `x[index]` if the index is an integer or a tensor of integers, otherwise None."""
    first, *further = _split_index(index)
    if len(dims) < 2 or any(i is not Ellipsis and i != slice(None) for i in further):
        return None
    if isinstance(first, int) and not isinstance(first, bool):
        return dims[1:]
    if isinstance(first, Tensor) and not first.is_floating_point() and first.dtype != torch.bool:
        return [None] * first.dim() + dims[1:]
    return None


def _move_labels(labels: Tensor, name: str, values: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
    """Apply the function `name`, which moves elements, to the labels."""
    if not name.endswith("_as") and any(_lacks_values(x) for x in iterate_tensors((values, kwargs))):
        raise ValueError(f"labels: {name} takes an index or a mask whose values are unknown while the model is traced")
    if name in ("T", "mT"):
        return getattr(labels, name)
    # `view` may fail for labels, because their strides differ from the tensor's.
    method = {"getitem": "__getitem__", "view": "reshape", "view_as": "reshape_as"}.get(name, name)
    return getattr(labels, method)(*values, **kwargs)


def label_taken(r: Recorder, name: str, out: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    """Label `x[index]`. All elements along an indexed dimension become one unit."""
    if name == "getitem" and r.name(args[0]) and _pick_dims([*range(args[0].dim())], args[1]) is not None:
        label_moved(r, name, out, args, kwargs)
        return
    labels = r.labels(args[0])
    if name == "getitem":
        index = _split_index(args[1])
        if any(_is_mask(i) for i in index):
            picked = _label_masked(r, labels, index)
            if picked is None:
                r.give_up(name, out, args, kwargs)
            else:
                r.put(out, picked.expand(out.shape))
            return
        for place, dim in iterate_index(index, labels.dim()):
            if not isinstance(index[place], slice):
                r.ties.tie_along(labels, [dim], "the code picks some units by their index")
    else:
        _, dim = arguments_of(args, kwargs, "input", "dim")
        r.ties.tie_along(labels, [dim or 0], "the code picks some units by their index")
    label_moved(r, name, out, (args[0], *_replace_unknown(args[1:])), _replace_unknown(kwargs))


def _split_index(index: Any) -> tuple[Any, ...]:
    return index if isinstance(index, tuple) else (index,)


def _lacks_values(index: Any) -> bool:
    """Return True if the index is on the meta device, where tensors have no values."""
    return isinstance(index, Tensor) and index.is_meta


def _replace_unknown(value: Any) -> Any:
    """Return the arguments of an indexing function, with zeros in place of each tensor on the meta device."""
    if isinstance(value, dict):
        return {name: _replace_unknown(part) for name, part in value.items()}
    if isinstance(value, tuple):
        return tuple(_replace_unknown(part) for part in value)
    if _lacks_values(value):
        return torch.zeros_like(value, device="cpu")
    return value


def _label_masked(r: Recorder, labels: Tensor, index: tuple[Any, ...]) -> Tensor | None:
    """Return the unit labels of `x[mask]` or `x[mask, :]`, or None for other indices.

    All selected rows have the same labels, so the result has only one row.
    """
    mask, *further = index
    if not isinstance(mask, Tensor) or any(i is not Ellipsis and i != slice(None) for i in further):
        return None
    head = r.ties.tie_along(labels, range(mask.dim()), "the code picks some units by their index")
    return head.reshape(1, *labels.shape[mask.dim() :])


def _is_mask(index: Any) -> bool:
    if isinstance(index, list):
        return any(isinstance(i, bool | list) for i in index)
    return isinstance(index, Tensor) and index.dtype == torch.bool


def label_split(r: Recorder, name: str, out: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    """Label the pieces of a split. If all pieces are equally large, units at the same index become one unit.

    If `torch.split` makes unequal pieces, each piece has its own units. If another function makes unequal pieces, their
    units are never cut.
    """
    label_moved(r, name, out, args, kwargs)
    names = {"unbind": ("input", "dim")}.get(name, ("input", "sizes", "dim"))
    along = arguments_of(args, kwargs, *names)[-1] or 0
    if not varies_along(r.labels(args[0]), along):
        return
    first, *further = (r.labels(x) for x in out)
    if all(piece.shape == first.shape for piece in further):
        for piece in further:
            r.ties.tie(piece, first)
    elif name != "split":
        r.ties.pin(r.labels(args[0]), "the units are split into unequal parts")
        for x in out:
            r.track_uncut(x)


def label_joined(r: Recorder, name: str, out: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    """Label the result of `torch.cat` or `torch.stack`.

    Along the dimensions that are not joined, all tensors have the same units.
    """
    joined, dim = arguments_of(args, kwargs, "tensors", "dim")
    inputs = list(iterate_tensors(joined))
    # An empty tensor, such as a cache before its first use, adds no labels.
    parts = [x for x in inputs if x.numel()] or inputs[:1]
    dim = (dim or 0) % out.dim()
    pieces = [r.labels(x) for x in parts]
    if name == "stack":
        pieces = [x.unsqueeze(dim) for x in pieces]
    across = [[d for d in range(out.dim()) if d != dim and varies_along(x, d)] for x in pieces]
    if all(varies_along(x, dim) and are_element_labels(x) for x, dims in zip(pieces, across, strict=True) if dims):
        # The units of an initial state of a recurrent layer may lie along any dimension.
        reason = "the units are joined along another dimension"
        pieces = [r.ties.tie_along(x, dims, reason).expand(x.shape) for x, dims in zip(pieces, across, strict=True)]
    else:
        heads = [r.ties.tie_along(x, [dim], "the units are joined along another dimension") for x in pieces]
        for head in heads[1:]:
            r.ties.tie(heads[0], head)
    r.put(out, torch.cat(pieces, dim))


def label_padded(r: Recorder, name: str, out: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    """Label a padded tensor. If a dimension has units, the padding along it is never cut."""
    x, widths = arguments_of(args, kwargs, "input", "pad")
    labels = r.labels(x)
    for step in range(len(widths) // 2):
        dim = labels.dim() - 1 - step
        # If a dimension has units, the padding along it belongs to no unit.
        if varies_along(labels, dim):
            new = [0] * (2 * step) + list(widths[2 * step : 2 * step + 2])
            labels = F.pad(labels, new)
        else:
            size = labels.size(dim) + widths[2 * step] + widths[2 * step + 1]
            labels = labels.narrow(dim, 0, 1).expand(*labels.shape[:dim], size, *labels.shape[dim + 1 :])
    r.put(out, labels)


def label_pooled(r: Recorder, name: str, out: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    """Label the result of pooling. Each channel keeps its label."""
    labels = r.labels(args[0])
    channels = r.ties.tie_along(labels, range(2, labels.dim()), f"`{name}` combines positions")
    for result in iterate_tensors(out):
        r.put(result, channels.expand(result.shape))


def label_reduced(r: Recorder, name: str, out: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    """Label the result of a reduction or softmax. Elements that the function combines become one unit."""
    x, *values = args
    # With two tensors, `max(a, b)` is elementwise.
    if values and isinstance(values[0], Tensor):
        label_elementwise(r, name, out, args, kwargs)
        return
    labels = r.labels(x)
    positional = (*values, None, None)[_DIM_AT.get(name, 0)]
    dim = kwargs.get("dim", kwargs.get("axis", positional))
    if dim is None:
        dim = _DEFAULT_DIMS.get(name)
    dims = _named_dims(labels, dim)
    head = r.ties.tie_along(labels, dims, f"`{name}` is computed over all units")
    for result in iterate_tensors(out):
        small = head
        if result.dim() < labels.dim():
            for d in reversed(dims):
                small = small.squeeze(d)
        r.put(result, small.expand(result.shape))


def _named_dims(x: Tensor, dim: Any) -> list[int]:
    """Return the dimensions of x that an argument `dim` names, ascending. None and booleans mean all dimensions."""
    if dim is None or isinstance(dim, bool):
        return list(range(x.dim()))
    if isinstance(dim, int):
        dim = [dim]
    return sorted(d % x.dim() for d in dim)


def label_shuffled(r: Recorder, name: str, out: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    """Label the result of a pixel shuffle, pixel unshuffle or channel shuffle."""
    x, factor = (*args, *kwargs.values())[:2]
    labels = r.ties.tie_along(r.labels(x), [0, *range(2, x.dim())], f"`{name}` combines positions").reshape(-1)
    # A cut removes the channels with the same index from every group of channels.
    if name == "channel_shuffle":
        groups = labels.view(factor, -1)
        r.ties.tie(groups, groups[:1])
        channels = groups.T.reshape(-1)
    elif name == "pixel_shuffle":
        channels = r.ties.tie_along(labels.view(-1, factor**2), [1], f"`{name}` joins the units").reshape(-1)
    else:
        channels = labels.repeat_interleave(out.size(1) // len(labels))
    r.put(out, channels.view(-1, *[1] * (out.dim() - 2)).expand(out.shape))


def label_unfolded(r: Recorder, name: str, out: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    """Label the windows of `Tensor.unfold` or the patches of `functional.unfold`."""
    x = args[0]
    if out.dim() == x.dim() + 1:
        _, dim = arguments_of(args, kwargs, "input", "dimension")
        labels = r.ties.tie_along(r.labels(x), [dim], "its windows overlap")
        r.put(out, labels.unsqueeze(-1).expand(out.shape))
        return
    labels = r.ties.tie_along(r.labels(x), [0, *range(2, x.dim())], f"`{name}` combines positions").reshape(-1)
    r.put(out, labels.repeat_interleave(out.size(-2) // len(labels)).unsqueeze(-1).expand(out.shape))


def label_folded(r: Recorder, name: str, out: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    """Label the result of a fold, which adds overlapping patches per channel."""
    x = args[0]
    labels = r.ties.tie_along(r.labels(x), [*range(x.dim() - 2), x.dim() - 1], f"`{name}` combines positions").reshape(
        -1
    )
    channels = r.ties.tie_along(labels.view(out.size(-3), -1), [1], f"`{name}` joins the units").reshape(-1)
    r.put(out, channels.view(-1, 1, 1).expand(out.shape))


def label_complex(r: Recorder, name: str, out: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    """Label complex numbers. The real and the imaginary part of a number become one unit."""
    x = args[0]
    r.put(out, r.ties.tie_along(r.labels(x), [x.dim() - 1], "the units are parts of one complex number").squeeze(-1))


def label_real(r: Recorder, name: str, out: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    """Give the real and the imaginary part of a complex number the same unit label as the number."""
    r.put(out, r.labels(args[0]).unsqueeze(-1).expand(out.shape))


def label_fourier(r: Recorder, name: str, out: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    """Label the result of a Fourier transform. Elements along a transformed dimension become one unit."""
    labels = r.labels(args[0])
    usual = {"2": (-2, -1), "n": None}.get(name[-1], -1)
    dim = kwargs.get("dim", (*args[2:], usual)[0])
    head = r.ties.tie_along(labels, _named_dims(labels, dim), "a Fourier transform is computed over all units")
    r.put(out, head.expand(out.shape))


def label_sampled(r: Recorder, name: str, out: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    """Label the result of `grid_sample`. The coordinates in `grid` are never cut."""
    x, grid = arguments_of(args, kwargs, "input", "grid")
    r.ties.pin(r.labels(grid), f"`{name}` reads the units as coordinates")
    channels = r.ties.tie_along(r.labels(x), [0, *range(2, x.dim())], f"`{name}` combines positions")
    r.put(out, channels.expand(out.shape))
