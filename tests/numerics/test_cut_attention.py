"""Cuts of attention by whole heads, compared with the full module in which absent units are zero."""

import numpy as np
import pytest
import torch
from cut_cases import SEQUENCE, Calls, Case, check_case, head_of
from torch import Tensor, nn

from benchmarks.system.cut_check import check_cut
from fedraa.submodels import Traced
from fedraa.submodels.tracing.trace import trace_module


class Attention(nn.Module):
    """Attention in plain code. With `fixed`, the number of heads and the width are constants in the code."""

    def __init__(self, width: int, heads: int, fixed: bool) -> None:
        super().__init__()
        self.qkv = nn.Linear(width, 3 * width)
        self.out = nn.Linear(width, width)
        self.heads, self.width, self.fixed = heads, width // heads, fixed

    def forward(self, x: Tensor) -> Tensor:
        batch, length, _ = x.shape
        heads = self.heads if self.fixed else self.qkv.out_features // (3 * self.width)
        q, k, v = self.qkv(x).reshape(batch, length, 3, heads, self.width).permute(2, 0, 3, 1, 4)
        attention = (q @ k.transpose(-2, -1) * self.width**-0.5).softmax(dim=-1)
        return self.out((attention @ v).transpose(1, 2).reshape(batch, length, -1))


def transformer(**options: object) -> nn.Module:
    layer = nn.TransformerEncoderLayer(12, 4, 20, dropout=0.1, **options)  # type: ignore[arg-type]
    return Calls(
        lambda m, x: m["out"](m["layer"](m["into"](x))), into=nn.Linear(6, 12), layer=layer, out=nn.Linear(12, 3)
    )


# Each name stands for a module, an example and the sizes of its groups.
CASES: dict[str, Case] = {
    "attention": (
        Calls(
            lambda m, x: m["c"](m["b"](m["a"](x))), a=nn.Linear(6, 8), b=Attention(8, 4, fixed=False), c=nn.Linear(8, 3)
        ),
        SEQUENCE,
        [8, 4, 8],
    ),
    "attention with constant heads": (
        Calls(
            lambda m, x: m["c"](m["b"](m["a"](x))), a=nn.Linear(6, 8), b=Attention(8, 4, fixed=True), c=nn.Linear(8, 3)
        ),
        SEQUENCE,
        [8, 4, 8],
    ),
    "transformer layer": (transformer(batch_first=True), SEQUENCE, [4, 20]),
    "transformer layer, sequence first": (transformer(norm_first=True), SEQUENCE, [4, 20]),
    "attention that lends its weights": (
        Calls(lambda m, x: m["b"](m["a"](x, x, x)[1]), a=nn.MultiheadAttention(6, 3, batch_first=True), b=head_of(5)),
        SEQUENCE,
        # The heads stay whole, because the code reads the mean over them. The output that no code reads can be cut.
        [6, 4],
    ),
    "cross attention": (
        Calls(
            lambda m, x: m["c"](m["b"](y := m["a"](x), y.flip(1))),
            a=nn.Linear(6, 12),
            b=nn.TransformerDecoderLayer(12, 4, 20, batch_first=True),
            c=nn.Linear(12, 3),
        ),
        SEQUENCE,
        [4, 4, 20],
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_cuts_are_right(name: str) -> None:
    check_case(*CASES[name])


def test_cut_of_the_inputs_of_attention_with_all_heads() -> None:
    module = Calls(
        lambda m, x: m["out"](m["attention"](y := m["into"](x), y, y)[0] + y),
        into=nn.Linear(6, 12),
        attention=nn.MultiheadAttention(12, 4, batch_first=True),
        out=nn.Linear(12, 3),
    )
    traced = trace_module(module, SEQUENCE)
    assert [group.size for group in traced.groups] == [12, 4]
    check_cut(traced, SEQUENCE, (np.array([0, 3, 7]), np.arange(4)))


def transformer_cut(**options: object) -> tuple[Traced, nn.Module, nn.Module]:
    """Return a traced transformer layer, its cut to heads 1 and 3, and the full module with zeros for heads 0 and 2."""
    traced = trace_module(transformer(**options), SEQUENCE)
    small = traced.cut((np.array([1, 3]), np.arange(20)))
    silent = traced.cut(traced.full())
    with torch.no_grad():
        out = silent.layers["layer"].self_attn.out_proj.weight  # [embedding, heads * 3]
        out[:, 0:3] = out[:, 6:9] = 0
    return traced, small.eval(), silent.eval()


def test_the_fast_path_of_a_transformer_layer_stays_right() -> None:
    _, small, silent = transformer_cut(batch_first=True)
    # Without gradients, an uncut layer in evaluation mode uses a fused kernel.
    with torch.no_grad():
        torch.testing.assert_close(small(SEQUENCE), silent(SEQUENCE))


@pytest.mark.parametrize("boolean", [True, False])
@pytest.mark.parametrize("need_weights", [True, False])
def test_masks_of_cut_attention(boolean: bool, need_weights: bool) -> None:
    _, small, silent = transformer_cut(batch_first=True)
    x = torch.randn(4, 5, 12)
    causal = torch.ones(5, 5).triu(1).bool()
    padding = torch.arange(5) >= torch.tensor([5, 4, 3, 5])[:, None]
    if not boolean:
        causal, padding = (torch.zeros(mask.shape).masked_fill(mask, float("-inf")) for mask in (causal, padding))
    found, expected = (
        module.layers["layer"].self_attn(
            x, x, x, attn_mask=causal, key_padding_mask=padding, need_weights=need_weights, average_attn_weights=False
        )
        for module in (small, silent)
    )
    torch.testing.assert_close(found[0], expected[0])
    if need_weights:
        torch.testing.assert_close(found[1], expected[1][:, [1, 3]])
    else:
        assert found[1] is None
