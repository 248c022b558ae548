"""Cuts of every kind of layer, compared with the full module in which absent units are zero."""

import pytest
import torch
import torch.nn.functional as F
from cut_cases import IMAGE, SEQUENCE, TOKENS, VECTOR, Calls, Case, check_case, conv, head
from torch import nn

# Each name maps to a module, an example and the sizes of its groups.
CASES: dict[str, Case] = {
    "batch norm": (
        nn.Sequential(conv(3, 8), nn.BatchNorm2d(8), nn.ReLU(), conv(8, 6), nn.BatchNorm2d(6), nn.SiLU(), head(6)),
        IMAGE,
        [8, 6],
    ),
    "group norm in whole groups": (nn.Sequential(conv(3, 12), nn.GroupNorm(4, 12), nn.GELU(), head(12)), IMAGE, [4]),
    "instance norm and prelu": (
        nn.Sequential(conv(3, 8), nn.InstanceNorm2d(8, affine=True), nn.PReLU(8), head(8)),
        IMAGE,
        [8],
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
        [8, 5],
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_cut_equals_the_full_module_with_zeros(name: str) -> None:
    check_case(*CASES[name])
