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
from fedraa.submodels.tracing.recorder import Recorder, Rule, tensors


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


def _linear(r: Recorder, name: str, out: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    x, weight, bias = _arguments(args, kwargs, "input", "weight", "bias")
    labels = r.labels(x)
    if r.name(weight) is None and weight.dim() == 2:
        product = _product(r, labels, r.labels(weight).T)
        r.put(out, (product if bias is None else r.ties.merge(product, r.labels(bias))).expand(out.shape))
        return
    inner = r.ties.span(labels, range(labels.dim() - 1), "a linear layer reads them at every position")
    r.bind(weight, 1, inner.reshape(-1))
    units = r.make(weight, 0)
    r.bind(bias, 0, units)
    r.put(out, units.expand(out.shape))


def _convolution(r: Recorder, name: str, out: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    x, weight, bias, _, _, _, groups = _arguments(
        args, kwargs, "input", "weight", "bias", "stride", "padding", "dilation", "groups"
    )
    groups = groups or 1
    channels = _channels(r, x, weight.dim() - 2)
    units = r.make(weight, 0)
    if groups == 1:
        r.bind(weight, 1, channels)
    else:
        per_in, per_out = len(channels) // groups, len(units) // groups
        ins, outs = channels.view(groups, per_in), units.view(groups, per_out)
        if groups >= per_in:  # cut whole groups: depthwise is the case of one channel each
            r.grouped.add(r.name(weight) or "")
            r.ties.tie(ins, ins[:, :1])
            r.ties.tie(outs, ins[:, :1])
        else:  # cut every group alike
            r.ties.tie(ins, ins[:1])
            r.ties.tie(outs, outs[:1])
            r.bind(weight, 1, ins[0])
    r.bind(bias, 0, units)
    r.put(out, units.view(-1, *[1] * (weight.dim() - 2)).expand(out.shape))


def _transposed(r: Recorder, name: str, out: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    x, weight, bias, _, _, _, groups = _arguments(
        args, kwargs, "input", "weight", "bias", "stride", "padding", "output_padding", "groups"
    )
    if (groups or 1) != 1:
        r.give_up(name, out, args, kwargs)
        return
    r.bind(weight, 0, _channels(r, x, weight.dim() - 2))
    units = r.make(weight, 1)
    r.bind(bias, 0, units)
    r.put(out, units.view(-1, *[1] * (weight.dim() - 2)).expand(out.shape))


def _channels(r: Recorder, x: Tensor, space: int) -> Tensor:
    labels = r.labels(x)
    at = labels.dim() - space - 1
    dims = [d for d in range(labels.dim()) if d != at]
    return r.ties.span(labels, dims, "a convolution reads them at every position").reshape(-1)


def _batch_norm(r: Recorder, name: str, out: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    x, mean, var, weight, bias, own = _arguments(
        args, kwargs, "input", "running_mean", "running_var", "weight", "bias", "use_input_stats"
    )
    if kwargs.get("training", own):
        r.estimated.update(known for tensor in (mean, var) if (known := r.name(tensor)))
    labels = r.labels(x)
    dims = [d for d in range(labels.dim()) if d != 1]
    channels = r.ties.span(labels, dims, f"`{name}` takes its statistics over all of them").reshape(-1)
    for tensor in (mean, var, weight, bias):
        r.bind(tensor, 0, channels)
    r.put(out, labels)


def _group_norm(r: Recorder, name: str, out: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    """Exact in whole normalisation groups: those that stay keep their own statistics."""
    x, groups, weight, bias = _arguments(args, kwargs, "input", "num_groups", "weight", "bias")
    labels = r.labels(x)
    dims = [d for d in range(labels.dim()) if d != 1]
    channels = r.ties.span(labels, dims, "GroupNorm takes its statistics over all of them").reshape(-1)
    r.ties.span(channels.view(groups, -1), [1], "GroupNorm takes its statistics over all of them")
    for tensor in (weight, bias):
        r.bind(tensor, 0, channels)
    r.put(out, labels)


def _layer_norm(r: Recorder, name: str, out: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    x, shape = _arguments(args, kwargs, "input", "normalized_shape")
    labels = r.labels(x)
    last = range(labels.dim() - len(shape), labels.dim())
    r.ties.span(labels, last, "LayerNorm takes its statistics over all of them")
    r.put(out, labels)


def _embedding(r: Recorder, name: str, out: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    _, weight = _arguments(args, kwargs, "input", "weight")
    r.put(out, r.make(weight, 1).expand(out.shape))


def _prelu(r: Recorder, name: str, out: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    x, weight = _arguments(args, kwargs, "input", "weight")
    labels = r.labels(x)
    if weight.numel() > 1:
        r.bind(weight, 0, _channels(r, x, labels.dim() - 2))
    r.put(out, labels)


def _glu(r: Recorder, name: str, out: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    x, dim = _arguments(args, kwargs, "input", "dim")
    value, gate = r.labels(x).chunk(2, -1 if dim is None else dim)
    r.put(out, r.ties.merge(value, gate))


def _product(r: Recorder, left: Tensor, right: Tensor) -> Tensor:
    """Labels of `left @ right`, for labels `[..., i, c]` and `[..., c, k]` of two activations."""
    reason = "a matrix product runs over all of them"
    left = r.ties.span(left, [left.dim() - 1], reason)
    return r.ties.merge(left, r.ties.span(right, [right.dim() - 2], reason))


def _matmul(r: Recorder, name: str, out: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    left, right = args if name != "rmatmul" else args[::-1]
    if right.dim() < 2 or (left.dim() < 2 and not (r.name(right) and right.dim() == 2)):
        r.give_up(name, out, args, kwargs)
    else:
        r.put(out, _times(r, left, right).expand(out.shape))


def _times(r: Recorder, left: Tensor, right: Tensor) -> Tensor:
    """Labels of `left @ right`, where `right` may be a layer's matrix."""
    if r.name(right) is None or right.dim() != 2:
        return _product(r, r.labels(left), r.labels(right))
    labels = r.labels(left)
    inner = r.ties.span(labels, range(labels.dim() - 1), "a matrix product reads them at every position")
    r.bind(right, 0, inner.reshape(-1))
    return r.make(right, 1)


def _addmm(r: Recorder, name: str, out: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    matrices = ("mat1", "mat2") if name == "addmm" else ("batch1", "batch2")
    added, left, right = _arguments(args, kwargs, "input", *matrices)
    product = _times(r, left, right)
    if r.name(added) and added.dim() == 1 and product.dim() == 1:
        r.bind(added, 0, product)
    else:
        product = r.ties.merge(r.labels(added), product)
    r.put(out, product.expand(out.shape))


def _einsum(r: Recorder, name: str, out: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    """Letters that are not in the result are summed over; a layer's weight makes or reads units along one letter."""
    equation, *operands = args
    operands = list(operands[0]) if isinstance(operands[0], (list, tuple)) else operands
    if not isinstance(equation, str) or "." in equation or "->" not in equation:
        r.give_up(name, out, args, kwargs)
        return
    ins, _, outs = equation.replace(" ", "").partition("->")
    terms = list(zip(ins.split(","), operands, strict=True))
    named = [i for i, (_, x) in enumerate(terms) if r.name(x)]
    if len(terms) == 2 and len(named) == 1:
        (weights, weight), (letters, x) = terms[named[0]], terms[1 - named[0]]
        shared = set(weights) & set(letters)
        new = [c for c in weights if c in outs and c not in letters]
        if new and not shared & set(outs) and len(shared) + len(new) == len(weights):
            r.put(out, _einsum_layer(r, weights, weight, letters, r.labels(x), new[0], outs).expand(out.shape))
            return
    labels = torch.zeros((1,) * len(outs), dtype=torch.int64)
    for letters, x in terms:
        if len(set(letters)) < len(letters):
            r.give_up(name, out, args, kwargs)
            return
        summed = [d for d, c in enumerate(letters) if c not in outs]
        small = r.ties.span(r.labels(x), summed, "`einsum` sums over all of them")
        labels = r.ties.merge(labels, _ordered(small, letters, outs))
    r.put(out, labels.expand(out.shape))


def _einsum_layer(
    r: Recorder, weights: str, weight: Tensor, letters: str, labels: Tensor, new: str, outs: str
) -> Tensor:
    """Labels of an activation times a weight: read along the first cut letter that is summed, made along `new`."""
    summed = [c for c in weights if c in letters]
    cut = next((c for c in summed if varies(labels, letters.index(c))), summed[0]) if summed else None
    others = [d for d, c in enumerate(letters) if c != cut]
    inner = r.ties.span(labels, others, "`einsum` reads them at every position").reshape(-1)
    if cut is not None:
        r.bind(weight, weights.index(cut), inner)
    return r.make(weight, weights.index(new)).view([-1 if c == new else 1 for c in outs])


def _ordered(labels: Tensor, letters: str, outs: str) -> Tensor:
    """The dimensions `letters` of labels in the order of `outs`; the others are of size 1."""
    kept = [c for c in outs if c in letters]
    gone = [d for d, c in enumerate(letters) if c not in outs]
    moved = labels.permute([letters.index(c) for c in kept] + gone).flatten(len(kept)) if gone else labels
    moved = moved.squeeze(-1) if gone else moved.permute([letters.index(c) for c in kept])
    for d, c in enumerate(outs):
        moved = moved if c in letters else moved.unsqueeze(d)
    return moved


def _scatter(r: Recorder, name: str, out: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    """Adds or writes slices at other positions of one dimension."""
    x, dim, _, source = _arguments(args, kwargs, "input", "dim", "index", "src" if "scatter" in name else "source")
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
    x, dim = _arguments(args, kwargs, "input", "dim")
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


def _attention(r: Recorder, name: str, out: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    """Whole heads: the products over a head's width tie it together."""
    query, key, value, mask = _arguments(args, kwargs, "query", "key", "value", "attn_mask")
    keys, values = r.labels(key), r.labels(value)
    if kwargs.get("enable_gqa"):  # several heads of queries for one of keys and values
        keys, values = (x.repeat_interleave(query.size(-3) // x.size(-3), -3) for x in (keys, values))
    scores = _product(r, r.labels(query), keys.transpose(-1, -2))
    if mask is not None:
        scores = r.ties.merge(scores, r.labels(mask))
    r.put(out, _product(r, scores, values).expand(out.shape))


def _multi_head(r: Recorder, name: str, out: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    """`nn.MultiheadAttention`: one unit per head, through queries, keys, values and the output projection."""
    query, key, value, _, heads, weight, bias, bias_k, bias_v, zero = args[:10]
    mask = kwargs.get("attn_mask")
    per_head = mask is not None and mask.dim() > 2
    if r.name(weight) is None or bias_k is not None or bias_v is not None or zero or per_head:
        r.give_up(name, out, args, kwargs)
        return
    out_weight, out_bias = args[11:13]
    for x in (query, key, value):
        labels = r.labels(x)
        inner = r.ties.span(labels, range(labels.dim() - 1), "attention reads them at every position")
        r.bind(weight, 1, inner.reshape(-1))
    units = r.make(weight, 0)
    r.bind(bias, 0, units)
    split = units.view(3, heads, -1)
    r.ties.tie(split, split[:1, :, :1])
    r.bind(out_weight, 1, split[2].reshape(-1))
    made = r.make(out_weight, 0)
    r.bind(out_bias, 0, made)
    result, weights = out
    r.put(result, made.expand(result.shape))
    if weights is not None:
        r.hide(weights, units, "the weights of its attention are used")


def _recurrent(r: Recorder, name: str, out: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    """Layers of one width, each in one or two directions: a unit is a row in every gate, and has a state."""
    x, state, weights, biased, layers, _, _, two, *_ = args
    heads = 2 if two else 1
    if not isinstance(weights, list) or len(weights) != (4 if biased else 2) * layers * heads:
        r.give_up(name, out, args, kwargs)  # packed sequences, or projections
        return
    each = len(weights) // (layers * heads)
    read, units = r.labels(x), list[Tensor]()
    for layer in range(layers):
        for head in range(heads):
            at = (layer * heads + head) * each
            units.append(_gates(r, read, weights[at : at + each]))
            r.ties.tie(units[-1], units[0])
        read = torch.cat(units[-heads:])
    _begin(r, units[0], state)
    sequence, *last = out
    r.put(sequence, read.expand(sequence.shape))
    for y in last:
        r.put(y, units[0].expand(y.shape))


def _cell(r: Recorder, name: str, out: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    x, state, *weights = args
    units = _gates(r, r.labels(x), [w for w in weights if w is not None])
    _begin(r, units, state)
    for y in tensors(out):
        r.put(y, units.expand(y.shape))


def _gates(r: Recorder, read: Tensor, weights: Sequence[Tensor]) -> Tensor:
    """The units that one layer makes in one direction: a row in each of its gates."""
    inner = r.ties.span(read, range(read.dim() - 1), "a recurrent layer reads them at every position").reshape(-1)
    into, back, *biases = weights
    r.bind(into, 1, inner)
    rows = r.make(into, 0)
    gates = rows.view(-1, back.size(1))
    r.ties.tie(gates, gates[:1])
    r.bind(back, 0, rows)
    r.bind(back, 1, gates[0])
    for bias in biases:
        r.bind(bias, 0, rows)
    return gates[0]


def _begin(r: Recorder, units: Tensor, state: Any) -> None:
    """A recurrent layer starts from states of its units, from zeros, or, if they are other numbers, stays whole."""
    for x in tensors(state):
        labels = r.labels(x)
        if labels.any() or x.any():
            r.ties.tie(labels, units)


def _arguments(args: tuple[Any, ...], kwargs: dict[str, Any], *names: str) -> tuple[Any, ...]:
    values = (*args, *[None] * len(names))[: len(names)]
    return tuple(kwargs.get(name, value) for name, value in zip(names, values, strict=True))


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
    _linear: "linear",
    _convolution: "conv1d conv2d conv3d",
    _transposed: "conv_transpose1d conv_transpose2d conv_transpose3d",
    _batch_norm: "batch_norm instance_norm",
    _group_norm: "group_norm",
    _layer_norm: "layer_norm rms_norm",
    _embedding: "embedding embedding_bag",
    _prelu: "prelu",
    _glu: "glu",
    _matmul: "matmul bmm mm rmatmul",
    _addmm: "addmm addbmm baddbmm",
    _einsum: "einsum",
    _scatter: "index_add index_copy scatter scatter_add",
    _gather: "gather",
    _attention: "scaled_dot_product_attention",
    _recurrent: "gru lstm rnn_relu rnn_tanh",
    _cell: "gru_cell lstm_cell rnn_relu_cell rnn_tanh_cell",
    _multi_head: "multi_head_attention_forward",
}

RULES: dict[str, Rule] = {name: rule for rule, names in _GROUPS.items() for name in names.split()}
