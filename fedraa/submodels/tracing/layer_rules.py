"""The tracer's rules for layers with parameters."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from fedraa.submodels.tracing.product_rules import arguments_of, multiply_labels
from fedraa.submodels.tracing.recorder import Recorder


def label_linear(r: Recorder, name: str, out: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    """Label each element of a linear layer's output with its unit. The rows of its weight are new units."""
    x, weight, bias = arguments_of(args, kwargs, "input", "weight", "bias")
    labels = r.labels(x)
    if r.name(weight) is None and weight.dim() == 2:
        labels = multiply_labels(r, labels, r.labels(weight).T)
        if bias is not None:
            labels = r.ties.merge_labels(labels, r.labels(bias))
        r.put(out, labels.expand(out.shape))
        return
    inner = r.ties.tie_along(labels, range(labels.dim() - 1), "a linear layer reads the units at every position")
    r.bind(weight, 1, inner.reshape(-1))
    units = r.make(weight, 0)
    r.bind(bias, 0, units)
    r.put(out, units.expand(out.shape))


def label_convolution(r: Recorder, name: str, out: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    """Label each element of a convolution's output with its unit. Its output channels are new units."""
    x, weight, bias, _, _, _, groups = arguments_of(
        args, kwargs, "input", "weight", "bias", "stride", "padding", "dilation", "groups"
    )
    groups = groups or 1
    channels = _tie_channels(r, x, weight.dim() - 2)
    units = r.make(weight, 0)
    if groups == 1:
        r.bind(weight, 1, channels)
    else:
        per_in, per_out = len(channels) // groups, len(units) // groups
        ins, outs = channels.view(groups, per_in), units.view(groups, per_out)
        # With many groups, such as in a depthwise convolution, a cut removes whole groups.
        if groups >= per_in:
            r.grouped.add(r.name(weight) or "")
            r.ties.tie(ins, ins[:, :1])
            r.ties.tie(outs, ins[:, :1])
        else:
            # A cut removes the same channels of every group.
            r.ties.tie(ins, ins[:1])
            r.ties.tie(outs, outs[:1])
            r.bind(weight, 1, ins[0])
    r.bind(bias, 0, units)
    r.put(out, units.view(-1, *[1] * (weight.dim() - 2)).expand(out.shape))


def label_transposed_convolution(
    r: Recorder, name: str, out: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> None:
    """Label each element of a transposed convolution's output with its unit. Its output channels are new units."""
    x, weight, bias, _, _, _, groups = arguments_of(
        args, kwargs, "input", "weight", "bias", "stride", "padding", "output_padding", "groups"
    )
    if (groups or 1) != 1:
        r.give_up(name, out, args, kwargs)
        return
    r.bind(weight, 0, _tie_channels(r, x, weight.dim() - 2))
    units = r.make(weight, 1)
    r.bind(bias, 0, units)
    r.put(out, units.view(-1, *[1] * (weight.dim() - 2)).expand(out.shape))


def _tie_channels(r: Recorder, x: Tensor, space: int) -> Tensor:
    """Tie the elements of each channel at all positions. Return the labels of the channels."""
    labels = r.labels(x)
    at = labels.dim() - space - 1
    dims = [d for d in range(labels.dim()) if d != at]
    return r.ties.tie_along(labels, dims, "a convolution reads the units at every position").reshape(-1)


def label_batch_norm(r: Recorder, name: str, out: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    """Label the output, statistics and parameters of a batch norm with their channels."""
    x, mean, var, weight, bias, own = arguments_of(
        args, kwargs, "input", "running_mean", "running_var", "weight", "bias", "use_input_stats"
    )
    if kwargs.get("training", own):
        r.estimated.update(known for known in map(r.name, (mean, var)) if known)
    labels = r.labels(x)
    dims = [d for d in range(labels.dim()) if d != 1]
    channels = r.ties.tie_along(labels, dims, f"`{name}` takes its statistics over all units").reshape(-1)
    for tensor in (mean, var, weight, bias):
        r.bind(tensor, 0, channels)
    r.put(out, labels)


def label_group_norm(r: Recorder, name: str, out: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    """Label each element of a group norm's output with its unit. Only whole groups of channels are cut."""
    x, groups, weight, bias = arguments_of(args, kwargs, "input", "num_groups", "weight", "bias")
    labels = r.labels(x)
    dims = [d for d in range(labels.dim()) if d != 1]
    channels = r.ties.tie_along(labels, dims, "GroupNorm takes its statistics over all units").reshape(-1)
    r.ties.tie_along(channels.view(groups, -1), [1], "GroupNorm takes its statistics over all units")
    for tensor in (weight, bias):
        r.bind(tensor, 0, channels)
    r.put(out, labels)


def label_layer_norm(r: Recorder, name: str, out: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    """Label each element of a layer norm's output with its unit. Normalized elements can only be cut together."""
    x, shape = arguments_of(args, kwargs, "input", "normalized_shape")
    labels = r.labels(x)
    last = range(labels.dim() - len(shape), labels.dim())
    r.ties.tie_along(labels, last, "LayerNorm takes its statistics over all units")
    r.put(out, labels)


def label_embedding(r: Recorder, name: str, out: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    """Label each element of an embedding's output with its unit. The columns of its weight are new units."""
    _, weight = arguments_of(args, kwargs, "input", "weight")
    r.put(out, r.make(weight, 1).expand(out.shape))


def label_prelu(r: Recorder, name: str, out: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    """Label a PReLU's output like the input, and its slopes like the channels."""
    x, weight = arguments_of(args, kwargs, "input", "weight")
    labels = r.labels(x)
    if weight.numel() > 1:
        r.bind(weight, 0, _tie_channels(r, x, labels.dim() - 2))
    r.put(out, labels)


def label_glu(r: Recorder, name: str, out: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    """Label each element of the output of `glu` with its unit. An element can only be cut with its gate."""
    x, dim = arguments_of(args, kwargs, "input", "dim")
    value, gate = r.labels(x).chunk(2, -1 if dim is None else dim)
    r.put(out, r.ties.merge_labels(value, gate))


def label_bilinear(r: Recorder, name: str, out: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    """Label each element of a bilinear layer's output with its unit."""
    left, right, weight, bias = arguments_of(args, kwargs, "input1", "input2", "weight", "bias")
    for dim, x in ((1, left), (2, right)):
        labels = r.labels(x)
        inner = r.ties.tie_along(labels, range(labels.dim() - 1), "a bilinear layer reads the units at every position")
        r.bind(weight, dim, inner.reshape(-1))
    units = r.make(weight, 0)
    r.bind(bias, 0, units)
    r.put(out, units.expand(out.shape))


def label_weight_norm(r: Recorder, name: str, out: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    """Label each element of a weight norm's output (a direction times a length) with its unit.

    Each slice along `dim` has a length. If `dim` is -1, there is only one length.
    """
    direction, length, dim = arguments_of(args, kwargs, "v", "g", "dim")
    if not (r.name(direction) and r.name(length)):
        r.give_up(name, out, args, kwargs)
        return
    if dim != -1:
        r.bind(length, dim or 0, r.make(direction, dim or 0))
    r.record_turned(direction, out, range(direction.dim()))
