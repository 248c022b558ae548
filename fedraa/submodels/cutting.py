"""Copies of a module without some of the module's units."""

from __future__ import annotations

import copy
from collections.abc import Mapping

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.utils.parametrize import is_parametrized

from fedraa.models.computed_weights import copy_computed
from fedraa.submodels.attention import CutAttention
from fedraa.submodels.resize import CallSizes, Place, resize_layer
from fedraa.submodels.scripted import copy_scripts

Kept = Mapping[str, Mapping[int, np.ndarray]]
"""For each tensor and each of its cut dimensions, the indices that are kept."""


_WEIGHTS = ("weight", "weight_v", "parametrizations.weight.original1")


def shrink_module(
    module: nn.Module, kept: Kept, grouped: frozenset[str], sizes: Mapping[str, Mapping[Place, CallSizes]]
) -> nn.Module:
    """Return a smaller copy of `module` that has only the kept indices of each tensor.

    The copy shares frozen parameters with `module`, which saves memory.

    Args:
        module: The full module.
        kept: The indices to keep along each cut dimension, by names of tensors. All other tensors are copied whole.
        grouped: Names of the weights of grouped convolutions. A cut removes whole groups of channels.
        sizes: The sizes that the code of a module uses, such as the arguments of a reshape, and their replacements.
    """
    memo = copy_computed(module) | copy_scripts(module)
    for name, tensor in (*module.named_parameters(), *module.named_buffers()):
        part = tensor.detach()
        for dim, index in kept.get(name, {}).items():
            if len(index) < part.size(dim):
                part = part.index_select(dim, torch.from_numpy(index).to(part.device))
        is_parameter = isinstance(tensor, nn.Parameter)
        if part.data_ptr() == tensor.data_ptr() and (tensor.requires_grad or not is_parameter):
            part = part.clone()
        if is_parameter:
            part = nn.Parameter(part, tensor.requires_grad)
        memo[id(tensor)] = part
    # The memo contains all tensors. This call copies only the structure.
    small: nn.Module = copy.deepcopy(module, memo)
    if not kept:
        return small
    full = dict(module.named_modules())
    for name, layer in small.named_modules():
        _fit_layer(layer, full[name], any(f"{name}.{weight}".lstrip(".") in grouped for weight in _WEIGHTS))
        if name in sizes:
            resize_layer(layer, sizes[name])
    return small


def _fit_layer(layer: nn.Module, full: nn.Module, grouped: bool) -> None:
    if isinstance(layer, nn.MultiheadAttention):
        _fit_attention(layer)
        return
    own = dict((*layer.named_parameters(recurse=False), *layer.named_buffers(recurse=False)))
    if isinstance(layer, (nn.RNNBase, nn.RNNCellBase)):
        assert isinstance(full, (nn.RNNBase, nn.RNNCellBase))
        ends = "_l0" if isinstance(layer, nn.RNNBase) else ""
        recurrent = own.get(f"weight_hh{ends}")
        into = own.get(f"weight_ih{ends}")
        if recurrent is not None and into is not None:
            rows = full.get_parameter(f"weight_hh{ends}").size(0)
            layer.hidden_size = full.hidden_size * recurrent.size(0) // rows
            layer.input_size = into.size(1)
        return
    weight = _find_weight(layer)
    if weight is None:
        return
    if isinstance(layer, nn.Linear):
        layer.out_features, layer.in_features = weight.shape
    elif isinstance(layer, nn.modules.conv._ConvNd):
        before = _find_weight(full)
        assert isinstance(full, nn.modules.conv._ConvNd)
        assert before is not None
        if grouped:
            layer.groups = full.groups * weight.size(0) // before.size(0)
        layer.out_channels, layer.in_channels = weight.size(0), weight.size(1) * layer.groups
        if layer.transposed:
            layer.out_channels, layer.in_channels = layer.in_channels, layer.out_channels
    elif isinstance(layer, nn.modules.batchnorm._NormBase):
        layer.num_features = weight.size(0)
    elif isinstance(layer, nn.GroupNorm):
        assert isinstance(full, nn.GroupNorm)
        layer.num_groups = full.num_groups * weight.size(0) // full.num_channels
        layer.num_channels = weight.size(0)
    elif isinstance(layer, (nn.Embedding, nn.EmbeddingBag)):
        layer.embedding_dim = weight.size(1)
    elif isinstance(layer, nn.PReLU):
        layer.num_parameters = weight.size(0)


def _find_weight(layer: nn.Module) -> Tensor | None:
    """Return the weight of a layer, or None if the layer has no weight.

    With weight normalisation, return the direction `v`, which has the shape of the weight.
    """
    own = dict(layer.named_parameters(recurse=is_parametrized(layer)))
    known = (own.get(name) for name in _WEIGHTS)
    return next(
        (weight for weight in known if weight is not None), dict(layer.named_buffers(recurse=False)).get("weight")
    )


def _fit_attention(layer: nn.MultiheadAttention) -> None:
    weight = dict(layer.named_parameters(recurse=False)).get("in_proj_weight")
    if weight is None or weight.shape == (3 * layer.embed_dim, layer.embed_dim):
        return
    layer.__class__ = CutAttention
    layer.num_heads = len(weight) // (3 * layer.head_dim)
    layer.out_proj.in_features = layer.out_proj.weight.size(1)
    # This setting disables the fast path of nn.TransformerEncoderLayer, which assumes the full widths.
    layer._qkv_same_embed_dim = False
