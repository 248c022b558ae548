"""What each torch function does to the labels of units.

A rule gets the recorder, the function's name, its result and its arguments. Functions are known by name,
which is the same for `torch.add`, `Tensor.add`, `Tensor.add_` and `+`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from fedraa.submodels.tracing.labels import varies
from fedraa.submodels.tracing.layers import (
    batch_norm,
    convolution,
    embedding,
    glu,
    group_norm,
    layer_norm,
    linear,
    prelu,
    transposed,
)
from fedraa.submodels.tracing.products import addmm, attention, einsum, matmul, multi_head
from fedraa.submodels.tracing.recorder import Recorder, Rule, arguments, tensors
from fedraa.submodels.tracing.recurrent import cell, recurrent


def _elementwise(r: Recorder, name: str, out: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    labels = torch.zeros((), dtype=torch.int64)
    for x in tensors((args, {k: v for k, v in kwargs.items() if k != "out"})):
        labels = r.ties.merge(labels, r.labels(x))
    r.put(out, labels.expand(out.shape))


def _same(r: Recorder, name: str, out: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    """Its other arguments, if they are tensors, lend no values."""
    x = args[0]
    if not (name in _TURNS and r.name(x)):
        r.put(out, r.labels(x))
    elif out is not x:
        r.turn(x, out, range(x.dim()))


def _constant(r: Recorder, name: str, out: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    r.track(out)


def _structural(r: Recorder, name: str, out: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
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


def _take(r: Recorder, name: str, out: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
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
    _structural(r, name, out, args, kwargs)


def _split(r: Recorder, name: str, out: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    """Equal pieces stay equal only if their units vanish together."""
    _structural(r, name, out, args, kwargs)
    place = 1 if name == "unbind" else 2
    if not varies(r.labels(args[0]), kwargs.get("dim", args[place] if len(args) > place else 0)):
        return
    first, *others = (r.labels(x) for x in out)
    for piece in others:
        if piece.shape == first.shape:
            r.ties.tie(piece, first)
        else:
            r.ties.pin(r.labels(args[0]), "they are split into unequal parts")


def _cat(r: Recorder, name: str, out: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
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


def _pad(r: Recorder, name: str, out: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
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


def _pool(r: Recorder, name: str, out: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    """Each channel on its own, over space."""
    labels = r.labels(args[0])
    channels = r.ties.span(labels, range(2, labels.dim()), f"`{name}` mixes its positions")
    for result in tensors(out):
        r.put(result, channels.expand(result.shape))


def _reduce(r: Recorder, name: str, out: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    """Mixes all elements along some dimensions; keeps the shape (softmax) or not (mean)."""
    x, *rest = args
    if rest and isinstance(rest[0], Tensor):  # max(a, b)
        _elementwise(r, name, out, args, kwargs)
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


def _scatter(r: Recorder, name: str, out: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    """Adds or writes slices at other positions of one dimension."""
    x, dim, _, source = arguments(args, kwargs, "input", "dim", "index", "src" if "scatter" in name else "source")
    labels = r.ties.span(r.labels(x), [dim], "some of them are picked by position")
    if isinstance(source, Tensor):
        added = r.ties.span(r.labels(source), [dim], "some of them are picked by position")
        if any(
            varies(y, d) and y.size(d) != z.size(d)
            for y, z in ((labels, added), (added, labels))
            for d in range(y.dim())
        ):
            r.give_up(name, out, args, kwargs)
            return
        labels = r.ties.merge(*(_thin(y) for y in (labels, added)))
    r.put(out, labels.expand(out.shape))


def _gather(r: Recorder, name: str, out: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    x, dim = arguments(args, kwargs, "input", "dim")
    labels = r.ties.span(r.labels(x), [dim], "some of them are picked by position")
    if any(varies(labels, d) and labels.size(d) != out.size(d) for d in range(labels.dim())):
        r.give_up(name, out, args, kwargs)
        return
    r.put(out, _thin(labels).expand(out.shape))


def _thin(labels: Tensor) -> Tensor:
    """Labels with size 1 along every dimension along which they only repeat."""
    for d in range(labels.dim()):
        if not varies(labels, d):
            labels = labels.narrow(d, 0, 1)
    return labels


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

_GROUPS: dict[Rule, str] = {
    _elementwise: """
        abs add addcmul alpha_dropout celu clamp clamp_max clamp_min cos div
        dropout dropout1d dropout2d dropout3d elu eq erf exp feature_alpha_dropout floor ge gelu gt
        hardsigmoid hardswish hardtanh iadd idiv imul isub itruediv le leaky_relu log log1p logsigmoid lt
        masked_fill maximum minimum mish mul ne neg pow radd rdiv reciprocal relu relu6 rmul rpow
        rrelu rsqrt rsub rtruediv selu sigmoid silu sin softplus softsign sqrt square sub tanh tanhshrink
        true_divide truediv where""",
    _same: """
        bfloat16 clone contiguous cpu data detach double empty_like float full_like half ones_like rand_like
        randn_like requires_grad to tril triu type type_as zeros_like""",
    _constant: "new_empty new_full new_ones new_tensor new_zeros",
    _structural: """
        T expand expand_as flatten flip mT movedim narrow permute repeat repeat_interleave reshape reshape_as roll
        squeeze swapaxes swapdims t tile transpose unflatten unsqueeze view view_as""",
    _take: "getitem index_select select",
    _split: "chunk split tensor_split unbind",
    _cat: "cat concat concatenate stack",
    _pad: "pad",
    _pool: """
        adaptive_avg_pool1d adaptive_avg_pool2d adaptive_avg_pool3d adaptive_max_pool1d adaptive_max_pool2d
        adaptive_max_pool3d avg_pool1d avg_pool2d avg_pool3d interpolate lp_pool1d lp_pool2d max_pool1d
        max_pool2d max_pool3d upsample""",
    _reduce: "amax amin cumsum log_softmax logsumexp max mean min norm normalize softmax softmin std sum var",
    linear: "linear",
    convolution: "conv1d conv2d conv3d",
    transposed: "conv_transpose1d conv_transpose2d conv_transpose3d",
    batch_norm: "batch_norm instance_norm",
    group_norm: "group_norm",
    layer_norm: "layer_norm rms_norm",
    embedding: "embedding embedding_bag",
    prelu: "prelu",
    glu: "glu",
    matmul: "matmul bmm mm rmatmul",
    addmm: "addmm addbmm baddbmm",
    einsum: "einsum",
    _scatter: "index_add index_copy scatter scatter_add",
    _gather: "gather",
    attention: "scaled_dot_product_attention",
    recurrent: "gru lstm rnn_relu rnn_tanh",
    cell: "gru_cell lstm_cell rnn_relu_cell rnn_tanh_cell",
    multi_head: "multi_head_attention_forward",
}

RULES: dict[str, Rule] = {name: rule for rule, names in _GROUPS.items() for name in names.split()}
