"""The tracer's rules for layers with parameters."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from fedraa.submodels.tracing.product_rules import arguments_of, multiply_labels
from fedraa.submodels.tracing.recorder import Recorder


def label_linear(r: Recorder, name: str, out: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    """Label a linear layer's output. Each output neuron and its row of the weight form a new unit."""
    x, weight, bias = arguments_of(args, kwargs, "input", "weight", "bias")
    labels = r.labels(x)
    if r.name(weight) is None and weight.dim() == 2:
        labels = multiply_labels(r, labels, r.labels(weight).T)
        if bias is not None:
            labels = r.ties.merge_labels(labels, r.labels(bias))
        r.put(out, labels.expand(out.shape))
        return
    inner = r.ties.tie_along(labels, range(labels.dim() - 1), "a linear layer reads the units at every position")
    r.bind_units(weight, 1, inner.reshape(-1))
    units = r.make_units(weight, 0)
    r.bind_units(bias, 0, units)
    r.put(out, units.expand(out.shape))


def label_convolution(r: Recorder, name: str, out: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    """Label a convolution's output. Each output channel is a new unit."""
    x, weight, bias, _, _, _, groups = arguments_of(
        args, kwargs, "input", "weight", "bias", "stride", "padding", "dilation", "groups"
    )
    groups = groups or 1
    channels = _tie_channels(r, x, weight.dim() - 2)
    units = r.make_units(weight, 0)
    if groups == 1:
        r.bind_units(weight, 1, channels)
    else:
        per_in, per_out = len(channels) // groups, len(units) // groups
        ins, outs = channels.view(groups, per_in), units.view(groups, per_out)
        # A depthwise convolution has many groups. A cut removes whole groups.
        if groups >= per_in:
            r.grouped.add(r.name(weight) or "")
            r.ties.tie(ins, ins[:, :1])
            r.ties.tie(outs, ins[:, :1])
        else:
            # A cut removes the same channels from every group.
            r.ties.tie(ins, ins[:1])
            r.ties.tie(outs, outs[:1])
            r.bind_units(weight, 1, ins[0])
    r.bind_units(bias, 0, units)
    r.put(out, units.view(-1, *[1] * (weight.dim() - 2)).expand(out.shape))


def label_transposed_convolution(
    r: Recorder, name: str, out: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> None:
    """Label a transposed convolution's output. Each output channel is a new unit."""
    x, weight, bias, _, _, _, groups = arguments_of(
        args, kwargs, "input", "weight", "bias", "stride", "padding", "output_padding", "groups"
    )
    if (groups or 1) != 1:
        r.give_up(name, out, args, kwargs)
        return
    r.bind_units(weight, 0, _tie_channels(r, x, weight.dim() - 2))
    units = r.make_units(weight, 1)
    r.bind_units(bias, 0, units)
    r.put(out, units.view(-1, *[1] * (weight.dim() - 2)).expand(out.shape))


def _tie_channels(r: Recorder, x: Tensor, space: int) -> Tensor:
    """Record that all elements of a channel must be cut together. Return one label per channel.

    Args:
        r: The recorder.
        x: The input.
        space: Number of dimensions after the channel dimension.
    """
    labels = r.labels(x)
    at = labels.dim() - space - 1
    dims = [d for d in range(labels.dim()) if d != at]
    return r.ties.tie_along(labels, dims, "a convolution reads the units at every position").reshape(-1)


def label_batch_norm(r: Recorder, name: str, out: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    """Label a batch norm's output, statistics and parameters like the channels of its input."""
    x, mean, var, weight, bias, own = arguments_of(
        args, kwargs, "input", "running_mean", "running_var", "weight", "bias", "use_input_stats"
    )
    if kwargs.get("training", own):
        r.estimated.update(known for known in map(r.name, (mean, var)) if known)
    labels = r.labels(x)
    dims = [d for d in range(labels.dim()) if d != 1]
    channels = r.ties.tie_along(labels, dims, f"`{name}` takes its statistics over all units").reshape(-1)
    for tensor in (mean, var, weight, bias):
        r.bind_units(tensor, 0, channels)
    r.put(out, labels)


def label_group_norm(r: Recorder, name: str, out: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    """Label a group norm's output like its input. A cut removes whole groups of channels."""
    x, groups, weight, bias = arguments_of(args, kwargs, "input", "num_groups", "weight", "bias")
    labels = r.labels(x)
    dims = [d for d in range(labels.dim()) if d != 1]
    channels = r.ties.tie_along(labels, dims, "GroupNorm takes its statistics over all units").reshape(-1)
    r.ties.tie_along(channels.view(groups, -1), [1], "GroupNorm takes its statistics over all units")
    for tensor in (weight, bias):
        r.bind_units(tensor, 0, channels)
    r.put(out, labels)


def label_layer_norm(r: Recorder, name: str, out: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    """Label a layer norm's output like its input. Elements that share statistics must be cut together."""
    x, shape = arguments_of(args, kwargs, "input", "normalized_shape")
    labels = r.labels(x)
    last = range(labels.dim() - len(shape), labels.dim())
    r.ties.tie_along(labels, last, "LayerNorm takes its statistics over all units")
    r.put(out, labels)


def label_embedding(r: Recorder, name: str, out: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    """Label an embedding's output. Each column of the weight is a new unit."""
    _, weight = arguments_of(args, kwargs, "input", "weight")
    r.put(out, r.make_units(weight, 1).expand(out.shape))


def label_prelu(r: Recorder, name: str, out: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    """Label a PReLU's output like its input. Label the slopes like the channels of the input."""
    x, weight = arguments_of(args, kwargs, "input", "weight")
    labels = r.labels(x)
    if weight.numel() > 1:
        r.bind_units(weight, 0, _tie_channels(r, x, labels.dim() - 2))
    r.put(out, labels)


def label_glu(r: Recorder, name: str, out: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    """Label the output of `glu` like its input. An element and its gate must be cut together."""
    x, dim = arguments_of(args, kwargs, "input", "dim")
    value, gate = r.labels(x).chunk(2, -1 if dim is None else dim)
    r.put(out, r.ties.merge_labels(value, gate))


def label_bilinear(r: Recorder, name: str, out: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    """Label a bilinear layer's output. Each output neuron is a new unit."""
    left, right, weight, bias = arguments_of(args, kwargs, "input1", "input2", "weight", "bias")
    for dim, x in ((1, left), (2, right)):
        labels = r.labels(x)
        inner = r.ties.tie_along(labels, range(labels.dim() - 1), "a bilinear layer reads the units at every position")
        r.bind_units(weight, dim, inner.reshape(-1))
    units = r.make_units(weight, 0)
    r.bind_units(bias, 0, units)
    r.put(out, units.expand(out.shape))


def label_weight_norm(r: Recorder, name: str, out: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    """Label the weight that a weight norm computes from a direction and a length.

    Each slice of the weight along `dim` has its own length. If `dim` is -1, the whole weight has one length.
    """
    direction, length, dim = arguments_of(args, kwargs, "v", "g", "dim")
    if not (r.name(direction) and r.name(length)):
        r.give_up(name, out, args, kwargs)
        return
    if dim != -1:
        r.bind_units(length, dim or 0, r.make_units(direction, dim or 0))
    r.record_derived(direction, out, range(direction.dim()))
