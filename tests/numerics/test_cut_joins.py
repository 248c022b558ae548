"""Cuts of tensors that are joined, split or rearranged, compared with the full module with zeros for absent units."""

import pytest
import torch
import torch.nn.functional as F
from cut_cases import IMAGE, SEQUENCE, VECTOR, Calls, Case, Parameter, check_case, conv, head
from torch import Tensor, nn


def fill(x: Tensor) -> Tensor:
    out = torch.zeros(x.shape, dtype=x.dtype)
    out[:, :] = x
    return out


def shuffle(x: Tensor) -> Tensor:
    batch, channels, height, width = x.shape
    return x.view(batch, 2, channels // 2, height, width).transpose(1, 2).reshape(batch, channels, height, width)


# Each name maps to a module, an example and the sizes of its groups.
CASES: dict[str, Case] = {
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
        # Each branch must keep at least one unit.
        [4, 5],
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
    "unequal parts": (
        Calls(
            lambda m, x: m["b"](m["a"](x).split([3, 5], 1)[1]),
            a=nn.Linear(6, 8),
            b=nn.Sequential(nn.Linear(5, 5), nn.Linear(5, 3)),
        ),
        VECTOR,
        [3, 5, 5],
    ),
    "assignment to a slice": (
        Calls(
            lambda m, x: m["c"](F.relu(m["b"](fill(m["a"](x))))),
            a=nn.Linear(6, 8),
            b=nn.Linear(8, 5),
            c=nn.Linear(5, 3),
        ),
        VECTOR,
        [8, 5],
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
        # The padded channels belong to no group.
        [8],
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
def test_cut_equals_the_full_module_with_zeros(name: str) -> None:
    check_case(*CASES[name])
