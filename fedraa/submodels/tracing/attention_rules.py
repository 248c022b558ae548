"""The tracer's rules for attention and for recurrent layers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from fedraa.submodels.tracing.product_rules import arguments_of, multiply_labels
from fedraa.submodels.tracing.recorder import Recorder, iterate_tensors


def label_attention(r: Recorder, name: str, out: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    """Label the output of attention. Each head is a unit."""
    query, key, value, mask = arguments_of(args, kwargs, "query", "key", "value", "attn_mask")
    keys, values = r.labels(key), r.labels(value)
    # With `enable_gqa`, several query heads use one head of keys and values.
    if kwargs.get("enable_gqa"):
        keys, values = (x.repeat_interleave(query.size(-3) // x.size(-3), -3) for x in (keys, values))
    scores = multiply_labels(r, r.labels(query), keys.transpose(-1, -2))
    if mask is not None:
        scores = r.ties.merge_labels(scores, r.labels(mask))
    r.put(out, multiply_labels(r, scores, values).expand(out.shape))


def label_multi_head(r: Recorder, name: str, out: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    """Label the output of `nn.MultiheadAttention`.

    Inside the layer, each head is a unit, with its rows and columns in the projections. Each element of the output
    vector is also a unit.
    """
    query, key, value, _, heads, weight, bias, bias_k, bias_v, zero = args[:10]
    mask = kwargs.get("attn_mask")
    per_head = mask is not None and mask.dim() > 2
    if r.name(weight) is None or bias_k is not None or bias_v is not None or zero or per_head:
        r.give_up(name, out, args, kwargs)
        return
    out_weight, out_bias = args[11:13]
    for x in (query, key, value):
        labels = r.labels(x)
        inner = r.ties.tie_along(labels, range(labels.dim() - 1), "attention reads the units at every position")
        r.bind_units(weight, 1, inner.reshape(-1))
    units = r.make_units(weight, 0)
    r.bind_units(bias, 0, units)
    split = units.view(3, heads, -1)
    r.ties.tie(split, split[:1, :, :1])
    r.bind_units(out_weight, 1, split[2].reshape(-1))
    outputs = r.make_units(out_weight, 0)
    r.bind_units(out_bias, 0, outputs)
    result, weights = out
    r.put(result, outputs.expand(result.shape))
    if weights is not None:
        r.hide_result(weights, units, "the weights of its attention are used")


def label_recurrent(r: Recorder, name: str, out: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    """Label the outputs of `nn.RNN`, `nn.LSTM` or `nn.GRU`.

    Each element of the hidden state is a unit. In the matrix of every gate, a unit has one row. All layers are cut
    along the same units.
    """
    x, state, weights, biased, layers, _, _, two, *_ = args
    heads = 2 if two else 1
    per_layer = 4 if biased else 2
    if not isinstance(weights, list) or len(weights) != per_layer * layers * heads:
        # Packed sequences and projections are not supported.
        r.give_up(name, out, args, kwargs)
        return
    read = r.labels(x)
    units: list[Tensor] = []
    for layer in range(layers):
        for head in range(heads):
            at = (layer * heads + head) * per_layer
            units.append(_label_gates(r, read, weights[at : at + per_layer]))
            r.ties.tie(units[-1], units[0])
        read = torch.cat(units[-heads:])
    _tie_state(r, units[0], state)
    sequence, *last = out
    r.put(sequence, read.expand(sequence.shape))
    for y in last:
        r.put(y, units[0].expand(y.shape))


def label_cell(r: Recorder, name: str, out: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    """Label the outputs of one recurrent step, such as `nn.LSTMCell`. Each element of the state is a unit."""
    x, state, *weights = args
    units = _label_gates(r, r.labels(x), [w for w in weights if w is not None])
    _tie_state(r, units, state)
    for y in iterate_tensors(out):
        r.put(y, units.expand(y.shape))


def _label_gates(r: Recorder, read: Tensor, weights: Sequence[Tensor]) -> Tensor:
    """Return a new label for each element of the state of a recurrent layer in one direction.

    In every gate, the row of weights that computes an element gets the label of this element.

    Args:
        r: The recorder.
        read: Labels of the input.
        weights: Parameters of the layer in one direction.
    """
    inner = r.ties.tie_along(
        read, range(read.dim() - 1), "a recurrent layer reads the units at every position"
    ).reshape(-1)
    into, back, *biases = weights
    r.bind_units(into, 1, inner)
    rows = r.make_units(into, 0)
    gates = rows.view(-1, back.size(1))
    r.ties.tie(gates, gates[:1])
    r.bind_units(back, 0, rows)
    r.bind_units(back, 1, gates[0])
    for bias in biases:
        r.bind_units(bias, 0, rows)
    return gates[0]


def _tie_state(r: Recorder, units: Tensor, state: Any) -> None:
    """Record that each unit of a recurrent layer is cut together with its element of the initial state.

    If the initial state is constant and not zero, record that the units are never cut.
    """
    for x in iterate_tensors(state):
        labels = r.labels(x)
        if labels.any() or x.any():
            r.ties.tie(labels, units)
