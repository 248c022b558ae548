"""Rules of recurrent layers: a unit is a row in every gate, and has a state."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from fedraa.submodels.tracing.recorder import Recorder, tensors


def recurrent(r: Recorder, name: str, out: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
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


def cell(r: Recorder, name: str, out: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
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
