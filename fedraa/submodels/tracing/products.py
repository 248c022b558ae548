"""Rules of products: matrices, einsum, attention."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from fedraa.submodels.tracing.labels import varies
from fedraa.submodels.tracing.recorder import Recorder, arguments


def matrix_product(r: Recorder, left: Tensor, right: Tensor) -> Tensor:
    """Labels of `left @ right`, for labels `[..., i, c]` and `[..., c, k]` of two activations."""
    reason = "a matrix product runs over all of them"
    left = r.ties.span(left, [left.dim() - 1], reason)
    return r.ties.merge(left, r.ties.span(right, [right.dim() - 2], reason))


def matmul(r: Recorder, name: str, out: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    left, right = args if name != "rmatmul" else args[::-1]
    if right.dim() < 2 or (left.dim() < 2 and not (r.name(right) and right.dim() == 2)):
        r.give_up(name, out, args, kwargs)
    else:
        r.put(out, _times(r, left, right).expand(out.shape))


def _times(r: Recorder, left: Tensor, right: Tensor) -> Tensor:
    """Labels of `left @ right`, where `right` may be a layer's matrix."""
    if r.name(right) is None or right.dim() != 2:
        return matrix_product(r, r.labels(left), r.labels(right))
    labels = r.labels(left)
    inner = r.ties.span(labels, range(labels.dim() - 1), "a matrix product reads them at every position")
    r.bind(right, 0, inner.reshape(-1))
    return r.make(right, 1)


def addmm(r: Recorder, name: str, out: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    matrices = ("mat1", "mat2") if name == "addmm" else ("batch1", "batch2")
    added, left, right = arguments(args, kwargs, "input", *matrices)
    product = _times(r, left, right)
    if r.name(added) and added.dim() == 1 and product.dim() == 1:
        r.bind(added, 0, product)
    else:
        product = r.ties.merge(r.labels(added), product)
    r.put(out, product.expand(out.shape))


def einsum(r: Recorder, name: str, out: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
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


def attention(r: Recorder, name: str, out: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    """Whole heads: the products over a head's width tie it together."""
    query, key, value, mask = arguments(args, kwargs, "query", "key", "value", "attn_mask")
    keys, values = r.labels(key), r.labels(value)
    if kwargs.get("enable_gqa"):  # several heads of queries for one of keys and values
        keys, values = (x.repeat_interleave(query.size(-3) // x.size(-3), -3) for x in (keys, values))
    scores = matrix_product(r, r.labels(query), keys.transpose(-1, -2))
    if mask is not None:
        scores = r.ties.merge(scores, r.labels(mask))
    r.put(out, matrix_product(r, scores, values).expand(out.shape))


def multi_head(r: Recorder, name: str, out: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
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
