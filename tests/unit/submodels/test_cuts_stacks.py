"""Stacks of matrices, such as those of experts, and weights that code splits before their use."""

from collections.abc import Callable
from functools import partial

import pytest
import torch
import torch.nn.functional as F
from cut_cases import IMAGE, Net, check_case
from refusals import refuses
from torch import Tensor, nn

from fedraa.submodels import trace_module

TOKENS = torch.randn(4, 6, 8)
EXPERTS, INNER = 3, 8


def experts(transposed: bool = False) -> dict[str, nn.Module | Tensor]:
    """A router, and two layers of each expert `[experts, out, in]`, or `[experts, in, out]`."""
    up, down = torch.randn(EXPERTS, 2 * INNER, 8), torch.randn(EXPERTS, 8, INNER)
    if transposed:
        up, down = up.mT.contiguous(), down.mT.contiguous()
    return {"route": nn.Linear(8, EXPERTS), "up": up, "down": down, "bias": torch.randn(EXPERTS, 2 * INNER)}


def gated(y: Tensor) -> Tensor:
    gate, up = y.chunk(2, -1)
    return F.silu(gate) * up


def chosen(m: Net, x: Tensor) -> tuple[Tensor, Tensor]:
    weight, which = m.route(x.flatten(0, 1)).softmax(-1).topk(1)
    return weight, which.squeeze(-1)


def picked(m: Net, x: Tensor) -> Tensor:
    """Return the weights of each token's expert: `[tokens, out, in]`."""
    weight, which = chosen(m, x)
    y = torch.bmm(m.up[which], x.flatten(0, 1).unsqueeze(-1)).squeeze(-1) + m.bias[which]
    return (torch.bmm(m.down[which], gated(y).unsqueeze(-1)).squeeze(-1) * weight).view(x.shape)


def sorted_by_expert(m: Net, x: Tensor) -> Tensor:
    weight, which = chosen(m, x)
    which, order = which.sort()
    ends = torch.histc(which.float(), EXPERTS, 0, EXPERTS - 1).cumsum(0, dtype=torch.int32)
    rows = x.flatten(0, 1)[order]
    y = gated(F.grouped_mm(rows, m.up, offs=ends))
    y = F.grouped_mm(y, m.down, offs=ends) * weight[order]
    return torch.zeros_like(y).index_add(0, order, y).view(x.shape)


def each(m: Net, x: Tensor) -> Tensor:
    """Return the weighted sum over all experts, one after the other."""
    weight = m.route(x).softmax(-1)
    return sum(F.linear(gated(F.linear(x, m.up[e], m.bias[e])), m.down[e]) * weight[..., e, None] for e in range(3))


def together(m: Net, x: Tensor) -> Tensor:
    """Return the weighted sum over all experts by a batched product."""
    y = x.flatten(0, 1).expand(EXPERTS, -1, -1)
    y = gated(torch.bmm(y, m.up))
    weight = m.route(x).flatten(0, 1).softmax(-1)
    return (torch.bmm(y, m.down) * weight.T.unsqueeze(-1)).sum(0).view(x.shape)


def summed(m: Net, x: Tensor) -> Tensor:
    y = gated(torch.einsum("ebtc,ecd->ebtd", x.expand(EXPERTS, *x.shape), m.up))
    y = torch.einsum("ebtd,edc->ebtc", y, m.down)
    return torch.einsum("ebtc,bte->btc", y, m.route(x).softmax(-1))


def dense(m: Net, x: Tensor) -> Tensor:
    """Return the weighted sum over all experts by an equation. Its weights could also make units of experts."""
    y = torch.einsum("btc,ecd->bted", x, m.up).relu()
    return torch.einsum("bted,edc,bte->btc", y, m.down, m.route(x).softmax(-1))


def layers() -> dict[str, nn.Module | Tensor]:
    """A layer, a router to eight experts of two layers, and a last layer. A small batch leaves most experts idle."""
    parts = {f"up{e}": nn.Linear(7, 5) for e in range(8)} | {f"down{e}": nn.Linear(5, 7) for e in range(8)}
    return {"first": nn.Linear(8, 7), "route": nn.Linear(7, 8), **parts, "last": nn.Linear(7, 3)}


def routed(pick: Callable[[Tensor, Tensor, Tensor, Callable[[Tensor], Tensor]], Tensor], x: Tensor, m: Net) -> Tensor:
    """Add the result of each expert for its tokens, which `pick` selects."""
    h = m.first(x[:, 0]).relu()
    best, out = m.route(h).argmax(-1), torch.zeros_like(h)
    for e in range(8):
        part = partial(lambda e, y: getattr(m, f"down{e}")(getattr(m, f"up{e}")(y).relu()), e)
        out = pick(out, best == e, h, part)
    return m.last(out)


def by_place(out: Tensor, mine: Tensor, h: Tensor, part: Callable[[Tensor], Tensor]) -> Tensor:
    (rows,) = torch.where(mine)
    return out.index_add(0, rows, part(h[rows]))


def by_mask(out: Tensor, mine: Tensor, h: Tensor, part: Callable[[Tensor], Tensor]) -> Tensor:
    out[mine] = part(h[mine])
    return out


def by_number(out: Tensor, mine: Tensor, h: Tensor, part: Callable[[Tensor], Tensor]) -> Tensor:
    rows = mine.nonzero().squeeze(-1)
    if rows.numel():
        out[rows] += part(h.index_select(0, rows))
    return out


def unpacked(m: Net, x: Tensor) -> Tensor:
    """A depthwise convolution with a weight that is split and joined again, as in state space models."""
    y = m.up(x).transpose(1, 2)
    weight = m.conv.weight.squeeze(1)
    y = F.conv1d(y, weight.unsqueeze(1), m.conv.bias, padding=1, groups=y.size(1))
    return m.down((y.mT * m.scale[None, None]).relu())


def turned(m: Net, x: Tensor) -> Tensor:
    """A layer's matrix on the left."""
    y = m.a.weight @ x.transpose(1, 2) + m.a.bias[:, None]
    return m.b(y.relu().transpose(1, 2))


def fused(m: Net, x: Tensor) -> Tensor:
    """Four heads of queries for two of keys and values, all from one layer."""
    b, t, _ = x.shape
    q, k, v = m.a(x).split([8, 4, 4], -1)
    q, k, v = (y.view(b, t, -1, 2).transpose(1, 2) for y in (q, k, v))
    k, v = (y.repeat_interleave(2, 1) for y in (k, v))
    return m.b(F.scaled_dot_product_attention(q, k, v).transpose(1, 2).reshape(b, t, -1))


def selective(m: Net, x: Tensor) -> Tensor:
    """Units times a value that is computed from all of them, by parts that stay whole."""
    y = m.a(x)
    scale, state = m.c(y).split([2, 3], -1)
    return m.b((y.unsqueeze(-1) * state.unsqueeze(2)).sum(-1).relu()) * scale.sum(-1, keepdim=True)


def in_slots(m: Net, x: Tensor) -> Tensor:
    y = torch.zeros(len(x), x.size(1), 7, dtype=x.dtype)
    for t in range(x.size(1)):
        y[:, t] = m.a(x[:, t])
    return m.b(y.relu())


# Each case has a call, its parts and the sizes of the groups.
STACKS: dict[str, tuple[Callable[..., Tensor], dict[str, nn.Module | Tensor], list[int]]] = {
    "weights picked by token": (picked, experts(), [INNER]),
    "tokens sorted by expert": (sorted_by_expert, experts(transposed=True), [INNER]),
    "experts in a loop": (each, experts(), [INNER]),
    "experts in a batched product": (together, experts(transposed=True), [INNER]),
    "summed": (summed, experts(transposed=True), [INNER]),
    "dense": (dense, {"route": nn.Linear(8, 3), "up": torch.randn(3, 8, 7), "down": torch.randn(3, 7, 8)}, [7]),
    **{
        pick.__name__: (lambda m, x, pick=pick: routed(pick, x, m), layers(), [7] + [5] * 8)
        for pick in (by_place, by_mask, by_number)
    },
    "unpacked": (
        unpacked,
        {"up": nn.Linear(8, 7), "conv": nn.Conv1d(7, 7, 3, groups=7), "scale": torch.randn(7), "down": nn.Linear(7, 8)},
        [7],
    ),
    "turned": (turned, {"a": nn.Linear(8, 7), "b": nn.Linear(7, 3)}, [7]),
    "fused": (fused, {"a": nn.Linear(8, 16), "b": nn.Linear(8, 3)}, [2]),
    "selective": (selective, {"a": nn.Linear(8, 7), "b": nn.Linear(7, 3), "c": nn.Linear(7, 5)}, [7]),
    "an empty cache": (
        lambda m, x: m.b(torch.cat([torch.tensor([]), m.a(x)], -2).relu()),
        {"a": nn.Linear(8, 7), "b": nn.Linear(7, 3)},
        [7],
    ),
    "a state that is overwritten": (
        lambda m, x: m.b(torch.empty_like(y := m.a(x)).copy_(y).relu()),
        {"a": nn.Linear(8, 7), "b": nn.Linear(7, 3)},
        [7],
    ),
    "einsum with an ellipsis": (
        lambda m, x: torch.einsum("...c,cd", torch.einsum("...c,dc->...d", x, m.a).relu(), m.b),
        {"a": torch.randn(7, 8), "b": torch.randn(7, 3)},
        [7],
    ),
    "written step by step": (in_slots, {"a": nn.Linear(8, 7), "b": nn.Linear(7, 3)}, [7]),
    "positions read by a list": (
        lambda m, x: m.b(m.a(x)[:, [0, -1]].relu()),
        {"a": nn.Linear(8, 7), "b": nn.Linear(7, 3)},
        [7],
    ),
}


def test_layers_that_data_can_skip_are_refused() -> None:
    def chosen(m: Net, x: Tensor) -> Tensor:
        y = m.b(m.a(x))
        return m.c(y) if len((y > 1e9).unique()) > 1 else y

    net = Net(chosen, a=nn.Linear(8, 7), b=nn.Linear(7, 7), c=nn.Linear(7, 7))
    with refuses("module", "`unique`", "'c.weight'"):
        trace_module(net, TOKENS)


def test_frozen_parameter_counts_as_a_constant() -> None:
    net = Net(lambda m, x: m.b((m.a(x).unflatten(-1, (4, 2)) * m.w).flatten(2)), a=nn.Linear(8, 8), b=nn.Linear(8, 3))
    net.w = nn.Parameter(torch.randn(2), requires_grad=False)
    check_case(net, TOKENS, [4])


def conv(inputs: int, outputs: int) -> nn.Module:
    return nn.Conv2d(inputs, outputs, 3, padding=1)


PICTURES: dict[str, tuple[nn.Module, list[int]]] = {
    "pixel shuffle": (nn.Sequential(conv(3, 8), nn.PixelShuffle(2), conv(2, 5), nn.ReLU(), conv(5, 2)), [2, 5]),
    "pixel unshuffle": (nn.Sequential(conv(3, 6), nn.PixelUnshuffle(2), conv(24, 5), nn.ReLU(), conv(5, 2)), [6, 5]),
    "channel shuffle": (nn.Sequential(conv(3, 8), nn.ChannelShuffle(2), conv(8, 5), nn.ReLU(), conv(5, 2)), [4, 5]),
    "patches": (
        nn.Sequential(conv(3, 6), nn.Unfold(2, stride=2), nn.Flatten(2), nn.Conv1d(24, 5, 1), nn.Conv1d(5, 2, 1)),
        [6, 5],
    ),
}


@pytest.mark.parametrize("name", STACKS)
def test_cut_of_stacked_matrices_is_exact(name: str) -> None:
    call, parts, sizes = STACKS[name]
    if call is sorted_by_expert and not hasattr(F, "grouped_mm"):
        pytest.skip("this PyTorch has no grouped_mm")
    check_case(Net(call, **parts), TOKENS, sizes)


@pytest.mark.parametrize("name", PICTURES)
def test_cut_of_image_layers_is_exact(name: str) -> None:
    module, sizes = PICTURES[name]
    check_case(module, IMAGE, sizes)
