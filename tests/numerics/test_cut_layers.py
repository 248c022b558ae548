"""Cuts through every kind of layer, each against the full module with absent units silenced."""

from collections.abc import Callable

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from benchmarks.system.cut_models import check, random_cut
from fedraa.submodels import Traced
from fedraa.submodels.tracing.trace import trace


class Calls(nn.Module):
    """Named layers, and a function that puts them together."""

    def __init__(self, forward: Callable[[nn.ModuleDict, Tensor], object], **layers: nn.Module) -> None:
        super().__init__()
        self.layers = nn.ModuleDict(layers)
        self.call = forward

    def forward(self, x: Tensor) -> object:
        return self.call(self.layers, x)


class Parameter(nn.Module):
    def __init__(self, *shape: int) -> None:
        super().__init__()
        self.value = nn.Parameter(torch.randn(shape))


class Attention(nn.Module):
    """The usual hand-written attention; `fixed` keeps the number of heads and the width as constants."""

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


IMAGE = torch.randn(4, 3, 8, 8)
VECTOR = torch.randn(4, 6)
SEQUENCE = torch.randn(4, 5, 6)
TOKENS = torch.randint(0, 20, (4, 7))


def conv(inputs: int, outputs: int, **options: int) -> nn.Conv2d:
    return nn.Conv2d(inputs, outputs, 3, padding=1, **options)


def head(channels: int) -> nn.Sequential:
    return nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(channels, 3))


def head_of(width: int) -> nn.Sequential:
    return nn.Sequential(nn.Linear(width, 4), nn.ReLU(), nn.Linear(4, 3))


def fill(x: Tensor) -> Tensor:
    out = torch.zeros(x.shape, dtype=x.dtype)
    out[:, :] = x
    return out


def checked(x: Tensor, width: int) -> Tensor:
    assert x.size(1) == width
    return x


def shuffle(x: Tensor) -> Tensor:
    batch, channels, height, width = x.shape
    return x.view(batch, 2, channels // 2, height, width).transpose(1, 2).reshape(batch, channels, height, width)


def transformer(**options: object) -> nn.Module:
    layer = nn.TransformerEncoderLayer(12, 4, 20, dropout=0.1, **options)  # type: ignore[arg-type]  # free options
    return Calls(
        lambda m, x: m["out"](m["layer"](m["into"](x))), into=nn.Linear(6, 12), layer=layer, out=nn.Linear(12, 3)
    )


# name: (module, example, sizes of its groups)
CASES: dict[str, tuple[nn.Module, Tensor, list[int]]] = {
    "batch norm": (
        nn.Sequential(conv(3, 8), nn.BatchNorm2d(8), nn.ReLU(), conv(8, 6), nn.BatchNorm2d(6), nn.SiLU(), head(6)),
        IMAGE,
        [8, 6],
    ),
    "group norm in whole groups": (nn.Sequential(conv(3, 12), nn.GroupNorm(4, 12), nn.GELU(), head(12)), IMAGE, [4]),
    "group norm of one group": (nn.Sequential(conv(3, 12), nn.GroupNorm(1, 12), nn.GELU(), head(12)), IMAGE, []),
    "instance norm and prelu": (
        nn.Sequential(conv(3, 8), nn.InstanceNorm2d(8, affine=True), nn.PReLU(8), head(8)),
        IMAGE,
        [8],
    ),
    "layer norm": (
        nn.Sequential(nn.Linear(6, 8), nn.LayerNorm(8), nn.Linear(8, 10), nn.GELU(), nn.Linear(10, 3)),
        VECTOR,
        [10],
    ),
    "residual stream": (
        Calls(
            lambda m, x: m["head"](F.relu(m["b"](F.relu(m["a"](y := F.relu(m["stem"](x))))) + y)),
            stem=conv(3, 8),
            a=conv(8, 5),
            b=conv(5, 8),
            head=head(8),
        ),
        IMAGE,
        [8, 5],
    ),
    "concatenation": (
        Calls(
            lambda m, x: m["head"](torch.cat([y := F.relu(m["a"](x)), m["b"](y), m["c"](x)], 1)),
            a=conv(3, 4),
            b=conv(4, 5),
            c=conv(3, 6),
            head=nn.Sequential(nn.BatchNorm2d(15), head(15)),
        ),
        IMAGE,
        [4, 5, 6],
    ),
    "concatenation onto a residual stream": (
        Calls(
            lambda m, x: m["head"](torch.cat([m["a"](x), m["b"](x)], 1) + m["c"](x)),
            a=conv(3, 4),
            b=conv(3, 5),
            c=conv(3, 9),
            head=head(9),
        ),
        IMAGE,
        [4, 5],  # neither branch can lose all its units
    ),
    "depthwise": (nn.Sequential(conv(3, 8), conv(8, 8, groups=8), nn.ReLU6(), head(8)), IMAGE, [8]),
    "depthwise with multiplier": (nn.Sequential(conv(3, 8), conv(8, 16, groups=8), nn.ReLU(), head(16)), IMAGE, [8]),
    "many groups": (nn.Sequential(conv(3, 12), conv(12, 24, groups=6), nn.ReLU(), head(24)), IMAGE, [6]),
    "few groups": (nn.Sequential(conv(3, 12), conv(12, 8, groups=2), nn.ReLU(), head(8)), IMAGE, [6, 4]),
    "transposed convolution": (
        nn.Sequential(conv(3, 6), nn.ConvTranspose2d(6, 5, 2, stride=2), nn.Tanh(), head(5)),
        IMAGE,
        [6, 5],
    ),
    "flatten and pooling": (
        nn.Sequential(conv(3, 6), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(96, 10), nn.ReLU(), nn.Linear(10, 3)),
        IMAGE,
        [6, 10],
    ),
    "one dimension": (
        nn.Sequential(nn.Conv1d(5, 8, 3), nn.BatchNorm1d(8), nn.AvgPool1d(2), nn.Flatten(), nn.Linear(16, 3)),
        SEQUENCE,
        [8],
    ),
    "squeeze and excitation": (
        Calls(
            lambda m, x: m["head"](
                (y := m["a"](x)) * m["up"](F.relu(m["down"](y.mean((2, 3), keepdim=True)))).sigmoid()
            ),
            a=conv(3, 8),
            down=nn.Conv2d(8, 4, 1),
            up=nn.Conv2d(4, 8, 1),
            head=head(8),
        ),
        IMAGE,
        [8, 4],
    ),
    "spatial gate": (
        Calls(
            lambda m, x: m["head"]((y := m["a"](x)) * m["gate"](y).sigmoid()),
            a=conv(3, 8),
            gate=conv(8, 1),
            head=head(8),
        ),
        IMAGE,
        [8],
    ),
    "gated units": (nn.Sequential(nn.Linear(6, 16), nn.GLU(), nn.Linear(8, 3)), VECTOR, [8]),
    "gated by a chunk": (
        Calls(
            lambda m, x: m["b"]((p := m["a"](x).chunk(2, -1))[0] * F.silu(p[1])), a=nn.Linear(6, 16), b=nn.Linear(8, 3)
        ),
        VECTOR,
        [8],
    ),
    "gated by two layers": (
        Calls(
            lambda m, x: m["c"](F.silu(m["a"](x)) * m["b"](x)), a=nn.Linear(6, 8), b=nn.Linear(6, 8), c=nn.Linear(8, 3)
        ),
        VECTOR,
        [8],
    ),
    "channel shuffle": (
        Calls(lambda m, x: m["head"](m["b"](shuffle(m["a"](x)))), a=conv(3, 8), b=conv(8, 6), head=head(6)),
        IMAGE,
        [4, 6],
    ),
    "split and joined again": (
        Calls(
            lambda m, x: m["head"](torch.cat([(p := m["a"](x).chunk(2, 1))[0], m["b"](p[1])], 1)),
            a=conv(3, 8),
            b=conv(4, 5),
            head=head(9),
        ),
        IMAGE,
        [4, 5],
    ),
    "embedding": (
        Calls(
            lambda m, x: m["b"](F.relu(m["a"](m["e"](x).mean(1)))),
            e=nn.Embedding(20, 8),
            a=nn.Linear(8, 6),
            b=nn.Linear(6, 3),
        ),
        TOKENS,
        [8, 6],
    ),
    "embedding bag": (nn.Sequential(nn.EmbeddingBag(20, 8), nn.ReLU(), nn.Linear(8, 3)), TOKENS, [8]),
    "weight tied to the output": (
        Calls(
            lambda m, x: F.linear(torch.tanh(m["a"](m["e"](x))), m["e"].weight),
            e=nn.Embedding(20, 8),
            a=nn.Linear(8, 8),
        ),
        TOKENS,
        [8],
    ),
    "one layer twice": (
        Calls(
            lambda m, x: m["c"](m["b"](F.relu(m["b"](m["a"](x))))),
            a=nn.Linear(6, 8),
            b=nn.Linear(8, 8),
            c=nn.Linear(8, 3),
        ),
        VECTOR,
        [8],
    ),
    "positions and layer scale": (
        Calls(
            lambda m, x: m["b"](((m["a"](x) + m["p"].value) * m["s"].value).mean(1)),
            a=nn.Linear(6, 8),
            p=Parameter(1, 5, 8),
            s=Parameter(8),
            b=nn.Linear(8, 3),
        ),
        SEQUENCE,
        [8],
    ),
    "a scale per position": (
        Calls(
            lambda m, x: m["b"]((m["a"](x) * m["p"].value).sum(1)),
            a=nn.Linear(6, 8),
            p=Parameter(5, 1),
            b=nn.Linear(8, 3),
        ),
        SEQUENCE,
        [8],
    ),
    "a class token": (
        Calls(
            lambda m, x: m["b"](torch.cat([m["t"].value.expand(len(x), -1, -1), m["a"](x)], 1)[:, 0]),
            a=nn.Linear(6, 8),
            t=Parameter(1, 1, 8),
            b=nn.Linear(8, 3),
        ),
        SEQUENCE,
        [8],
    ),
    "a plain matrix": (
        Calls(lambda m, x: F.relu(x @ m["p"].value) @ m["q"].value, p=Parameter(6, 8), q=Parameter(8, 3)),
        VECTOR,
        [8],
    ),
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
    "a softmax over channels": (
        nn.Sequential(nn.Linear(6, 8), nn.Softmax(-1), nn.Linear(8, 5), nn.ReLU(), nn.Linear(5, 3)),
        VECTOR,
        [5],
    ),
    "a mean over channels": (
        Calls(lambda m, x: m["b"](m["a"](x).mean(1, keepdim=True)), a=conv(3, 8), b=nn.Sequential(conv(1, 4), head(4))),
        IMAGE,
        [4],
    ),
    "a constant slice": (
        Calls(
            lambda m, x: m["b"](m["a"](x)[:, :4]), a=nn.Linear(6, 8), b=nn.Sequential(nn.Linear(4, 5), nn.Linear(5, 3))
        ),
        VECTOR,
        [4, 5],  # the four units that the slice drops may go
    ),
    "a width that is checked": (
        Calls(lambda m, x: m["b"](checked(m["a"](x), 8)), a=nn.Linear(6, 8), b=head_of(8)),
        VECTOR,
        [4],
    ),
    "unequal parts": (
        Calls(
            lambda m, x: m["b"](m["a"](x).split([3, 5], 1)[1]),
            a=nn.Linear(6, 8),
            b=nn.Sequential(nn.Linear(5, 5), nn.Linear(5, 3)),
        ),
        VECTOR,
        [5],
    ),
    "a parameter read by an unknown function": (
        Calls(
            lambda m, x: m["b"]((m["a"](x) + m["p"].value) * m["p"].value.cumprod(0)),
            a=nn.Linear(6, 8),
            p=Parameter(8),
            b=nn.Linear(8, 3),
        ),
        VECTOR,
        [],
    ),
    "assignment to a slice": (
        Calls(
            lambda m, x: m["c"](F.relu(m["b"](fill(m["a"](x))))),
            a=nn.Linear(6, 8),
            b=nn.Linear(8, 5),
            c=nn.Linear(5, 3),
        ),
        VECTOR,
        [5],
    ),
    "attention that lends its weights": (
        Calls(lambda m, x: m["b"](m["a"](x, x, x)[1]), a=nn.MultiheadAttention(6, 3, batch_first=True), b=head_of(5)),
        SEQUENCE,
        [6, 4],  # heads stay, as the mean over them is read; the output that nobody reads may go
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
    "a graph convolution": (
        Calls(lambda m, x: m["b"](F.relu(torch.ones(5, 5).to(x) @ m["a"](x))), a=nn.Linear(6, 8), b=nn.Linear(8, 3)),
        SEQUENCE,
        [8],
    ),
    "a residual stream padded with channels": (
        Calls(
            lambda m, x: m["c"](F.relu(m["b"](y := m["a"](x)) + F.pad(y, (0, 0, 0, 0, 4, 4)))),
            a=conv(3, 8),
            b=conv(8, 16),
            c=head(16),
        ),
        IMAGE,
        [8],  # the padded channels belong to nobody
    ),
    "statistics over channels by hand": (
        Calls(
            lambda m, x: m["c"](m["b"]((y := m["a"](x)) * torch.rsqrt(y.pow(2).mean(-1, keepdim=True) + 1))),
            a=nn.Linear(6, 8),
            b=nn.Linear(8, 5),
            c=nn.Linear(5, 3),
        ),
        VECTOR,
        [5],
    ),
    "a scale by its own width": (
        Calls(lambda m, x: m["b"](y := m["a"](x)) / y.shape[1], a=nn.Linear(6, 8), b=nn.Linear(8, 3)),
        VECTOR,
        [],  # only trying shows it
    ),
    "an unknown function": (
        Calls(
            lambda m, x: m["c"](F.relu(m["b"](m["a"](x).cumprod(1)))),
            a=nn.Linear(6, 8),
            b=nn.Linear(8, 5),
            c=nn.Linear(5, 3),
        ),
        VECTOR,
        [5],
    ),
    "a recurrent layer": (
        Calls(
            lambda m, x: m["c"](m["b"](m["a"](m["e"](x))[0])),
            e=nn.Linear(6, 4),
            a=nn.LSTM(4, 6),
            b=nn.Linear(6, 5),
            c=nn.Linear(5, 3),
        ),
        SEQUENCE,
        [4, 6, 5],
    ),
    "weight norm": (
        nn.Sequential(nn.utils.parametrizations.weight_norm(nn.Linear(6, 8)), nn.Linear(8, 5), nn.Linear(5, 3)),
        VECTOR,
        [5],
    ),
    "in place": (
        Calls(
            lambda m, x: m["c"](m["a"](x).add_(m["b"](x)).relu_().mul(2)),
            a=nn.Linear(6, 8),
            b=nn.Linear(6, 8),
            c=nn.Linear(8, 3),
        ),
        VECTOR,
        [8],
    ),
    "several outputs": (
        Calls(
            lambda m, x: {"x": m["b"](y := m["a"](x)), "y": (m["c"](y),)},
            a=nn.Linear(6, 8),
            b=nn.Linear(8, 3),
            c=nn.Linear(8, 2),
        ),
        VECTOR,
        [8],
    ),
    "a head of training only": (
        Calls(
            lambda m, x: (m["b"](y := m["a"](x)), m["c"](y)) if m.training else m["b"](y := m["a"](x)),
            a=nn.Linear(6, 8),
            b=nn.Linear(8, 3),
            c=nn.Linear(8, 2),
        ),
        VECTOR,
        [8],
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_cuts_are_right(name: str) -> None:
    module, example, sizes = CASES[name]
    torch.manual_seed(0)
    traced = trace(module, example)
    assert [group.size for group in traced.groups] == sizes
    rng = np.random.default_rng(0)
    for seed in range(3 if sizes else 0):
        check(traced, example, random_cut(traced, rng), seed)


REASONS = {
    "a parameter read by an unknown function": {
        "layers.a": "layers.a stays whole: it meets a tensor that is never cut.",
        "layers.p.value": "layers.p.value stays whole: `cumprod` is not a function that can be cut.",
        "layers.b": "layers.b stays whole: it is the output of the model.",
    },
    "layer norm": {
        "0": "0 stays whole: LayerNorm takes its statistics over all of them.",
        "4": "4 stays whole: it is the output of the model.",
    },
    "group norm of one group": {
        "0": "0 stays whole: GroupNorm takes its statistics over all of them.",
        "3.2": "3.2 stays whole: it is the output of the model.",
    },
    "an unknown function": {
        "layers.a": "layers.a stays whole: `cumprod` is not a function that can be cut.",
        "layers.c": "layers.c stays whole: it is the output of the model.",
    },
}


@pytest.mark.parametrize("name", REASONS)
def test_what_stays_whole_is_reported(name: str) -> None:
    module, example, _ = CASES[name]
    assert trace(module, example).uncut == REASONS[name]


def test_code_with_constant_widths_is_reported() -> None:
    module, example, _ = CASES["a width that is checked"]
    assert "the code of the module fixes its width" in trace(module, example).uncut["layers.a"]
    module, example, _ = CASES["a constant slice"]
    assert trace(module, example).uncut["layers.a"].startswith("layers.a is cut in part: ")


def transformer_cut(**options: object) -> tuple[Traced, nn.Module, nn.Module]:
    """A traced transformer layer, its cut to heads 1 and 3, and the full module with heads 0 and 2 silenced."""
    traced = trace(transformer(**options), SEQUENCE)
    small = traced.cut((np.array([1, 3]), np.arange(20)))
    silent = traced.cut(traced.full())
    with torch.no_grad():
        out = silent.layers["layer"].self_attn.out_proj.weight  # [embedding, heads * 3]
        out[:, 0:3] = out[:, 6:9] = 0
    return traced, small.eval(), silent.eval()


def test_the_fast_path_of_a_transformer_layer_stays_right() -> None:
    _, small, silent = transformer_cut(batch_first=True)
    with torch.no_grad():  # without gradients, an uncut layer in evaluation takes a fused path
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
