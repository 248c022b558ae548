"""Multi-head attention without some of its heads, inputs or outputs."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn


class CutAttention(nn.MultiheadAttention):
    """An `nn.MultiheadAttention` with fewer heads or smaller inputs and outputs.

    A cut replaces the class of an attention layer by this one. The parameters keep their names and order. Inputs must
    be batched, and masks must be equal for all heads.
    """

    def forward(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        key_padding_mask: Tensor | None = None,
        need_weights: bool = True,
        attn_mask: Tensor | None = None,
        average_attn_weights: bool = True,
        is_causal: bool = False,
    ) -> tuple[Tensor, Tensor | None]:
        assert self.in_proj_weight is not None
        weights = self.in_proj_weight.chunk(3)
        biases = (None,) * 3 if self.in_proj_bias is None else self.in_proj_bias.chunk(3)
        if not self.batch_first:
            query, key, value = (x.transpose(0, 1) for x in (query, key, value))
        # The shape is [batch, heads, length, head width].
        q, k, v = (
            F.linear(x, w, b).view(*x.shape[:2], -1, self.head_dim).transpose(1, 2)
            for x, w, b in zip((query, key, value), weights, biases, strict=True)
        )
        mask = q.new_zeros(())
        if attn_mask is not None:
            mask = _convert_mask(attn_mask, q)
        if key_padding_mask is not None:
            mask = mask + _convert_mask(key_padding_mask[:, None, None, :], q)
        p = self.dropout if self.training else 0.0
        if need_weights:
            scores = q @ k.transpose(-1, -2) * self.head_dim**-0.5
            attention = F.dropout((scores + mask).softmax(-1), p)
            heads = attention @ v
            if average_attn_weights:
                attention = attention.mean(1)
        else:
            attention = None
            heads = F.scaled_dot_product_attention(q, k, v, mask if mask.dim() else None, p)
        out = self.out_proj(heads.transpose(1, 2).flatten(2))
        if not self.batch_first:
            out = out.transpose(0, 1)
        return out, attention


def _convert_mask(mask: Tensor, like: Tensor) -> Tensor:
    """Return the mask as numbers to add to the attention scores. In a boolean mask, True becomes minus infinity."""
    if mask.dtype != torch.bool:
        return mask
    return torch.zeros_like(mask, dtype=like.dtype).masked_fill(mask, float("-inf"))
