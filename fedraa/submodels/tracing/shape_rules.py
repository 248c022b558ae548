"""Rules of functions that move, join or reduce elements, or take each on its own."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from fedraa.submodels.tracing.labels import varies
from fedraa.submodels.tracing.recorder import Recorder, tensors

_DIM_AT = {"norm": 1, "normalize": 1, "std": 0, "var": 0}

_VIEWS = {"view", "reshape", "reshape_as", "unflatten", "view_as"}

# what makes of a parameter the same parameter
_TURNS = {"T", "bfloat16", "clone", "contiguous", "double", "float", "half", "mT", "movedim", "permute"} | {
    "swapaxes",
    "swapdims",
    "t",
    "to",
    "transpose",
    "type_as",
}


def elementwise(r: Recorder, name: str, out: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    labels = torch.zeros((), dtype=torch.int64)
    for x in tensors((args, {k: v for k, v in kwargs.items() if k != "out"})):
        labels = r.ties.merge(labels, r.labels(x))
    r.put(out, labels.expand(out.shape))


def same(r: Recorder, name: str, out: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    """Its other arguments, if they are tensors, lend no values."""
    x = args[0]
    if not (name in _TURNS and r.name(x)):
        r.put(out, r.labels(x))
    elif out is not x:
        r.turn(x, out, range(x.dim()))


def constant(r: Recorder, name: str, out: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    r.track(out)


def structural(r: Recorder, name: str, out: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    """Moves elements: the same function moves their labels."""
    x, *rest = args
    if name in _TURNS and r.name(x):
        sizes = torch.empty(tuple(range(x.dim())), device="meta")  # a dimension's size is its number
        r.turn(x, out, _moved(sizes, name, rest, kwargs).shape)
        return
    moved = _moved(r.labels(x), name, rest, kwargs)
    for tensor, labels in zip(tensors(out), tensors(moved), strict=True):
        r.put(tensor, labels)
        if name in _VIEWS:
            r.split(labels)


def _moved(labels: Tensor, name: str, rest: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
    if name in ("T", "mT"):
        return getattr(labels, name)
    # labels are strided in their own way, so that a view of them may need a copy
    method = {"getitem": "__getitem__", "view": "reshape", "view_as": "reshape_as"}.get(name, name)
    return getattr(labels, method)(*rest, **kwargs)


def take(r: Recorder, name: str, out: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    """Picks positions by a constant; positions along a cut dimension must therefore be alike."""
    labels = r.labels(args[0])
    if name == "getitem":
        index = args[1] if isinstance(args[1], tuple) else (args[1],)
        if any(isinstance(i, list) or (isinstance(i, Tensor) and i.dtype == torch.bool) for i in index):
            r.give_up(name, out, args, kwargs)
            return
        dim = 0
        for place, item in enumerate(index):
            if item is Ellipsis:
                dim = labels.dim() - sum(i is not None for i in index[place + 1 :])
            elif item is not None:
                if not isinstance(item, slice):
                    r.ties.span(labels, [dim], "some of them are picked by position")
                dim += 1
    else:
        dim = kwargs.get("dim", args[1] if len(args) > 1 else 0)
        r.ties.span(labels, [dim], "some of them are picked by position")
    structural(r, name, out, args, kwargs)


def split(r: Recorder, name: str, out: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    """Equal pieces stay equal only if their units vanish together."""
    structural(r, name, out, args, kwargs)
    place = 1 if name == "unbind" else 2
    if not varies(r.labels(args[0]), kwargs.get("dim", args[place] if len(args) > place else 0)):
        return
    first, *others = (r.labels(x) for x in out)
    for piece in others:
        if piece.shape == first.shape:
            r.ties.tie(piece, first)
        else:
            r.ties.pin(r.labels(args[0]), "they are split into unequal parts")


def cat(r: Recorder, name: str, out: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    parts = list(tensors(args[0] if args else kwargs["tensors"]))
    dim = kwargs.get("dim", args[1] if len(args) > 1 else 0) % out.dim()
    pieces = [r.labels(x) for x in parts]
    if name == "stack":
        pieces = [x.unsqueeze(dim) for x in pieces]
    if any(varies(x, d) for x in pieces for d in range(out.dim()) if d != dim):
        heads = [r.ties.span(x, [dim], "they are joined along another dimension") for x in pieces]
        for head in heads[1:]:
            r.ties.tie(heads[0], head)
    r.put(out, torch.cat(pieces, dim))


def pad(r: Recorder, name: str, out: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    labels, widths = r.labels(args[0]), args[1] if len(args) > 1 else kwargs["pad"]
    for step in range(len(widths) // 2):
        dim = labels.dim() - 1 - step
        if varies(labels, dim):  # new units that belong to nobody
            new = [0] * (2 * step) + list(widths[2 * step : 2 * step + 2])
            labels = F.pad(labels, new)
        else:
            size = labels.size(dim) + widths[2 * step] + widths[2 * step + 1]
            labels = labels.narrow(dim, 0, 1).expand(*labels.shape[:dim], size, *labels.shape[dim + 1 :])
    r.put(out, labels)


def pool(r: Recorder, name: str, out: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    """Each channel on its own, over space."""
    labels = r.labels(args[0])
    channels = r.ties.span(labels, range(2, labels.dim()), f"`{name}` mixes its positions")
    for result in tensors(out):
        r.put(result, channels.expand(result.shape))


def reduce(r: Recorder, name: str, out: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    """Mixes all elements along some dimensions; keeps the shape (softmax) or not (mean)."""
    x, *rest = args
    if rest and isinstance(rest[0], Tensor):  # max(a, b)
        elementwise(r, name, out, args, kwargs)
        return
    labels = r.labels(x)
    place = _DIM_AT.get(name, 0)
    dim = kwargs.get("dim", kwargs.get("axis", rest[place] if len(rest) > place else None))
    if dim is None and name == "normalize":
        dim = 1
    dims = range(labels.dim()) if dim is None else [dim] if isinstance(dim, int) else list(dim)
    dims = sorted(d % labels.dim() for d in dims)
    head = r.ties.span(labels, dims, f"`{name}` runs over all of them")
    for result in tensors(out):
        small = head
        if result.dim() < labels.dim():
            for d in reversed(dims):
                small = small.squeeze(d)
        r.put(result, small.expand(result.shape))
