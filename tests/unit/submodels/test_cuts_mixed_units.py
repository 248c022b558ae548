"""Modules that combine units of several kinds, or have units in other dimensions: groups and exactness of cuts."""

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from cut_cases import IMAGE, SEQUENCE, VECTOR, Net, check_case
from torch import Tensor, nn
from torch.nn.utils import parametrizations


def joined(m: Net, x: Tensor) -> Tensor:
    """A stream that a block adds to and makes wider, as in ReXNet."""
    h = m.a(x)
    wider = m.b(h.relu())
    return m.c(torch.cat([wider[:, :8] + h, wider[:, 8:]], 1).relu())


def in_parts(m: Net, x: Tensor) -> Tensor:
    """Units next to a small number of values for each position, as in focal modulation."""
    value, gates = m.a(x).split([7, 2], -1)
    return m.b(m.c(value).relu() * gates.sum(-1, keepdim=True))


def multi_query(m: Net, x: Tensor) -> Tensor:
    """Heads of queries that share the keys and values of one head, which stay whole."""
    q = m.q(x).view(*x.shape[:2], 4, 3).transpose(1, 2)
    k, v = m.kv(x).split(3, -1)
    scores = (q @ k[:, None].mT * 3**-0.5).softmax(-1)
    return m.o((scores @ v[:, None]).transpose(1, 2).reshape(*x.shape[:2], 12))


def counted(m: Net, x: Tensor) -> Tensor:
    """Attention heads whose number is an attribute. Their width follows from it and the size of a layer's output."""
    q, k, v = (y.view(*y.shape[:-1], 4, y.size(-1) // 4).transpose(1, 2) for y in m.a(x).chunk(3, -1))
    y = ((q @ k.mT).softmax(-1) @ v).transpose(1, 2)
    return m.b(y.reshape(*y.shape[:-2], y.size(-2) * y.size(-1)))


def without_key_bias(m: Net, x: Tensor) -> Tensor:
    """A bias of which a part is overwritten before each use, as in Swin v2."""
    bias = m.a.bias.clone()
    bias[8:16].zero_()
    q, k, v = (y.unflatten(-1, (4, 2)).transpose(1, 2) for y in F.linear(x, m.a.weight, bias).chunk(3, -1))
    return m.b(((q @ k.mT).softmax(-1) @ v).transpose(1, 2).flatten(2))


def own_widths(m: Net, x: Tensor) -> Tensor:
    """Queries and keys that are narrower than values, all split at one place in the code."""
    q, k, v = m.a(x).split([8, 8, 24], -1)
    q, k, v = (y.reshape(*x.shape[:2], 4, -1).transpose(1, 2) for y in (q, k, v))
    return m.b(((q @ k.mT).softmax(-1) @ v).transpose(1, 2).reshape(*x.shape[:2], 24))


def by_weight(m: Net, x: Tensor) -> Tensor:
    """Code that reads sizes from a weight that is cut."""
    width = len(m.q.weight)
    q, k, v = (y(x).view(*x.shape[:2], 4, width // 4).transpose(1, 2) for y in (m.q, m.k, m.v))
    return m.b(((q @ k.mT).softmax(-1) @ v).transpose(1, 2).reshape(*x.shape[:2], width))


def in_turn(m: Net, x: Tensor) -> Tensor:
    """One place in the code that takes parts of layers with several widths."""
    for layer, part in ((m.a, 4), (m.b, 6), (m.c, 2)):
        y = layer(x)
        x = torch.cat([y[:, :part].relu(), y[:, part:]], 1)
    return x


def outer(m: Net, x: Tensor) -> Tensor:
    """All products of two kinds of units, of which the smaller group stays whole."""
    return m.b((m.a(x)[:, :, None] * m.c(x)[:, None]).flatten(1))


def scanned(m: Net, x: Tensor) -> Tensor:
    h = torch.zeros(x.size(0), 7, 2, dtype=x.dtype)
    for t in range(x.size(1)):
        u = m.a(x[:, t])
        h = h * m.w.exp() + m.c(u)[:, None] * u[..., None]
    return m.b(h.sum(-1))


def recurrent(m: Net, x: Tensor) -> Tensor:
    h = torch.zeros(2, x.size(0), 7, dtype=x.dtype)
    return m.b(m.a(x, (h.to(x.device), h))[0][:, -1])


def recurrent_image(m: Net, x: Tensor) -> Tensor:
    h = c = torch.zeros(x.size(0), 4, 8, 8, dtype=x.dtype)
    for _ in range(2):
        i, f, o, g = m.a(torch.cat([x, h], 1)).split(4, dim=1)
        c = f.sigmoid() * c + i.sigmoid() * g.tanh()
        h = o.sigmoid() * c.tanh()
    return m.b(h)


def turned(m: Net, x: Tensor) -> Tensor:
    """Rotary positions as complex numbers, and heads that are repeated."""
    b, t, _ = x.shape
    q, k, v = m.q(x).view(b, t, 4, 2), m.k(x).view(b, t, 2, 2), m.v(x).view(b, t, 2, 2)
    angles = torch.polar(torch.ones(t, 1), torch.arange(t)[:, None] * 0.1)[:, None]
    q, k = (
        torch.view_as_real(torch.view_as_complex(y.reshape(*y.shape[:-1], 1, 2)) * angles).flatten(3) for y in (q, k)
    )
    k, v = (y[:, :, :, None].expand(b, t, 2, 2, 2).reshape(b, t, 4, 2) for y in (k, v))
    q, k, v = (y.transpose(1, 2) for y in (q, k, v))
    return m.o(((q @ k.mT).softmax(-1) @ v).transpose(1, 2).reshape(b, t, -1))


def weights_of_length(layer: Callable[[nn.Module], nn.Module]) -> nn.Module:
    return nn.Sequential(
        layer(nn.Conv1d(5, 8, 3, padding=1)),
        nn.ReLU(),
        layer(nn.ConvTranspose1d(8, 6, 2, 2)),
        layer(nn.Conv1d(6, 6, 3, groups=6)),
        nn.ReLU(),
        nn.AdaptiveAvgPool1d(1),
        nn.Flatten(),
        layer(nn.Linear(6, 5)),
        nn.Linear(5, 3),
    )


def patches(m: Net, x: Tensor) -> Tensor:
    return m.b(F.fold(m.c(F.unfold(m.a(x), 2, stride=2).mT).mT, (8, 8), 2, stride=2))


def places(m: Net, x: Tensor) -> Tensor:
    return m.b(F.grid_sample(m.a(x), m.c(x).permute(0, 2, 3, 1).tanh(), align_corners=False))


LINEAR = {"a": nn.Linear(6, 8), "b": nn.Linear(8, 3)}

# Each case has a module, an example and the sizes of the groups.
CASES: dict[str, tuple[nn.Module, Tensor, list[int]]] = {
    "a stream that becomes wider": (
        Net(joined, a=nn.Linear(6, 8), b=nn.Linear(8, 12), c=nn.Linear(12, 3)),
        VECTOR,
        [8, 4],
    ),
    "split in unequal parts": (
        Net(in_parts, a=nn.Linear(6, 9), c=nn.Linear(7, 5), b=nn.Linear(5, 3)),
        SEQUENCE,
        [7, 5],
    ),
    "multi-query attention": (
        Net(multi_query, q=nn.Linear(6, 12), kv=nn.Linear(6, 6), o=nn.Linear(12, 3)),
        SEQUENCE,
        [4],
    ),
    "a number of heads as an attribute": (Net(counted, a=nn.Linear(6, 24), b=nn.Linear(8, 3)), SEQUENCE, [4]),
    "a part of a bias that is overwritten": (
        Net(without_key_bias, a=nn.Linear(6, 24), b=nn.Linear(8, 3)),
        SEQUENCE,
        [4],
    ),
    "values wider than queries and keys": (Net(own_widths, a=nn.Linear(6, 40), b=nn.Linear(24, 3)), SEQUENCE, [4]),
    "sizes read from a weight": (
        Net(by_weight, q=nn.Linear(6, 8), k=nn.Linear(6, 8), v=nn.Linear(6, 8), b=nn.Linear(8, 3)),
        SEQUENCE,
        [4],
    ),
    "two parts that are swapped": (
        Net(lambda m, x: m.b(torch.cat([(y := m.a(x))[:, -3:], y[:, :-3]], 1).relu()), **LINEAR),
        VECTOR,
        [5, 3],
    ),
    "two parts with different activations": (
        Net(lambda m, x: m.b(torch.cat([(y := m.a(x).split(5, 1))[0].relu(), y[1].tanh()], 1)), **LINEAR),
        VECTOR,
        [5, 3],
    ),
    "every other unit": (
        Net(lambda m, x: m.b(torch.cat([(y := m.a(x))[:, ::2].relu(), y[:, 1::2]], 1)), **LINEAR),
        VECTOR,
        [],
    ),
    "pairs of neighbouring units": (
        Net(lambda m, x: m.b((y := m.a(x))[:, ::2] * y[:, 1::2].sigmoid()), a=nn.Linear(6, 16), b=nn.Linear(8, 3)),
        VECTOR,
        [8],
    ),
    "one slice for several widths": (
        Net(in_turn, a=nn.Linear(6, 12), b=nn.Linear(12, 10), c=nn.Linear(10, 3)),
        VECTOR,
        [],
    ),
    "a bias that is read twice": (Net(lambda m, x: m.b(m.a(x).relu() + m.a.bias), **LINEAR), VECTOR, [8]),
    "an outer product": (Net(outer, a=nn.Linear(6, 5), c=nn.Linear(6, 4), b=nn.Linear(20, 3)), VECTOR, [5]),
    "a state space": (
        Net(scanned, a=nn.Linear(6, 7), c=nn.Linear(7, 2), w=torch.randn(7, 2), b=nn.Linear(7, 3)),
        SEQUENCE,
        [7],
    ),
    "an initial state of zeros": (
        Net(recurrent, a=nn.LSTM(6, 7, 2, batch_first=True, dropout=0.3), b=nn.Linear(7, 3)),
        SEQUENCE,
        [7],
    ),
    "an initial state that is an image": (
        Net(recurrent_image, a=nn.Conv2d(7, 16, 3, padding=1), b=nn.Conv2d(4, 2, 1)),
        IMAGE,
        [4],
    ),
    "complex rotary positions": (
        Net(turned, q=nn.Linear(6, 8), k=nn.Linear(6, 4), v=nn.Linear(6, 4), o=nn.Linear(8, 3)),
        SEQUENCE,
        [2],
    ),
    "a Fourier transform": (Net(lambda m, x: m.b(torch.fft.fft2(m.a(x)).real), **LINEAR), SEQUENCE, []),
    "a Fourier transform over positions": (
        Net(lambda m, x: m.b(torch.fft.irfft(torch.fft.rfft(m.a(x), dim=1) * 2, dim=1, n=5)), **LINEAR),
        SEQUENCE,
        [8],
    ),
    "weight norm": (weights_of_length(parametrizations.weight_norm), SEQUENCE, [8, 6, 5]),
    "old weight norm": (weights_of_length(nn.utils.weight_norm), SEQUENCE, [8, 6, 5]),
    "weight norm with one length": (
        nn.Sequential(parametrizations.weight_norm(nn.Linear(6, 8), dim=None), nn.Linear(8, 3)),
        VECTOR,
        [8],
    ),
    "scaled weights": (
        Net(
            lambda m, x: F.linear(F.linear(x, m.a * 0.5, m.c * 2).relu(), m.b / 3),
            a=torch.randn(8, 6),
            c=torch.randn(8),
            b=torch.randn(3, 8),
        ),
        VECTOR,
        [8],
    ),
    "a bilinear layer": (
        Net(
            lambda m, x: m.b(m.l(m.a(x), m.c(x))),
            a=nn.Linear(6, 4),
            c=nn.Linear(6, 5),
            l=nn.Bilinear(4, 5, 7),
            b=nn.Linear(7, 3),
        ),
        VECTOR,
        [4, 5, 7],
    ),
    "noise": (
        Net(lambda m, x: m.b((h := m.a(x)) + torch.randn_like(h) + torch.rand_like(input=h)), **LINEAR),
        VECTOR,
        [8],
    ),
    "patches": (
        Net(patches, a=nn.Conv2d(3, 4, 1), c=nn.Linear(16, 20), b=nn.Conv2d(5, 2, 1)),
        IMAGE,
        [4, 5],
    ),
    "sampled positions": (Net(places, a=nn.Conv2d(3, 4, 1), c=nn.Conv2d(3, 2, 1), b=nn.Conv2d(4, 2, 1)), IMAGE, [4]),
}


@pytest.mark.parametrize("name", CASES)
def test_cut_of_units_of_several_kinds_is_exact(name: str) -> None:
    check_case(*CASES[name])
