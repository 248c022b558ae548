"""Modules with widths as numbers in their code, or functions beyond plain layers: groups and exactness of cuts."""

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from cut_cases import loaded
from torch import Tensor, nn

from benchmarks.system.cut_check import check_cut, random_cut
from fedraa.submodels import flatten_parameters, trace_module
from fedraa.submodels.resize import SizeFormula
from fedraa.submodels.tracing.trace import _record_shapes
from fedraa.submodels.tracing.verify import CutChecker

SEQUENCE = torch.randn(4, 5, 8)
WIDTH, HEADS = 8, 4
HEAD_WIDTH = WIDTH // HEADS


class Block(nn.Module):
    """A layer that reads the stream `[b, t, 8]`, units in the middle, and a layer that writes the stream."""

    def __init__(
        self, mix: Callable[["Block", Tensor], Tensor], into: int = 3 * WIDTH, **more: nn.Module | Tensor
    ) -> None:
        super().__init__()
        self.into, self.out, self.mix = nn.Linear(WIDTH, into), nn.Linear(WIDTH, WIDTH), mix
        self.heads, self.width, self.head_width = HEADS, WIDTH, HEAD_WIDTH
        for name, part in more.items():
            setattr(self, name, part if isinstance(part, nn.Module) else nn.Parameter(part))

    def forward(self, x: Tensor) -> Tensor:
        result: Tensor = self.out(self.mix(self, x))
        return result


def attend(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return (q @ k.transpose(-1, -2) * HEAD_WIDTH**-0.5).softmax(-1) @ v


def packed(m: Block, x: Tensor) -> Tensor:
    b, t, c = x.shape
    q, k, v = m.into(x).reshape(b, t, 3, m.heads, m.head_width).permute(2, 0, 3, 1, 4).unbind(0)
    return F.scaled_dot_product_attention(q, k, v).transpose(1, 2).reshape(b, t, c)


def split(m: Block, x: Tensor) -> Tensor:
    b, t, c = x.size()
    q, k, v = (y.view(b, t, m.heads, c // m.heads).transpose(1, 2) for y in m.into(x).split(m.width, dim=2))
    return attend(q, k, v).transpose(1, 2).contiguous().view(b, t, c)


def sliced(m: Block, x: Tensor) -> Tensor:
    y = m.into(x)
    q, k, v = y[..., : m.width], y[:, :, m.width : 2 * m.width], y.narrow(2, 2 * m.width, m.width)
    q, k, v = (y.unflatten(-1, (m.heads, m.head_width)).transpose(1, 2) for y in (q, k, v))
    return attend(q, k, v).transpose(1, 2).flatten(2)


def batched(m: Block, x: Tensor) -> Tensor:
    b, t, c = x.size()
    q, k, v = (
        y.reshape(b, t, m.heads, m.head_width).transpose(1, 2).reshape(b * m.heads, -1, m.head_width)
        for y in m.into(x).chunk(3, 2)
    )
    y = torch.baddbmm(x.new_zeros(1, 1, 1), torch.bmm(q, k.mT).softmax(-1), v)
    return y.view(-1, m.heads, t, m.head_width).transpose(1, 2).reshape(b, -1, c)


def normed(m: Block, x: Tensor) -> Tensor:
    b, t, c = x.size()
    q, k, v = (y.view(b, t, m.heads, m.head_width).transpose(1, 2) for y in m.into(x).split(m.width, 2))
    q = q * torch.rsqrt(q.pow(2).mean(-1, keepdim=True) + 1e-3) * m.scale
    k = F.layer_norm(k, (m.head_width,), m.scale)
    return attend(q * m.temperature, k, v).transpose(1, 2).reshape(b, t, c)


def rotated(m: Block, x: Tensor) -> Tensor:
    """Two heads of queries for one of keys and values, turned by their position."""
    b, t, c = x.size()
    kv = m.heads // 2 * m.head_width
    q, k, v = m.q(x), m.into(x)[..., :kv], m.into(x)[..., kv:]
    q, k, v = (y.view(b, t, -1, m.head_width).transpose(1, 2) for y in (q, k, v))
    angle = torch.arange(t)[:, None] * torch.tensor([1.0, 0.5])
    q, k = (y * angle.cos() + torch.cat((-y[..., 1:], y[..., :1]), -1) * angle.sin() for y in (q, k))
    k, v = (
        y[:, :, None].expand(b, m.heads // 2, 2, t, m.head_width).reshape(b, m.heads, t, m.head_width) for y in (k, v)
    )
    return attend(q, k, v).transpose(1, 2).reshape(b, t, c)


def grouped(m: Block, x: Tensor) -> Tensor:
    b, t, c = x.size()
    k, v = m.into(x).chunk(2, -1)
    q, k, v = (y.view(b, t, -1, m.head_width).transpose(1, 2) for y in (m.q(x), k, v))
    return F.scaled_dot_product_attention(q, k, v, enable_gqa=True).transpose(1, 2).reshape(b, t, c)


def placed(m: Block, x: Tensor, table: Tensor | None = None) -> Tensor:
    """A table of biases by relative position, and a bias of the projection made of two."""
    b, t, c = x.size()
    table = m.table if table is None else table
    bias = torch.cat((m.q_bias, torch.zeros_like(m.v_bias), m.v_bias))
    q, k, v = F.linear(x, m.into.weight, bias).reshape(b, t, 3, m.heads, -1).permute(2, 0, 3, 1, 4)
    place = torch.arange(t)[:, None] - torch.arange(t) + t - 1
    relative = table[place.view(-1)].view(t, t, -1).permute(2, 0, 1)
    scores = q @ k.mT + relative
    return (scores.softmax(-1) @ v).transpose(1, 2).reshape(b, t, c)


def summed(m: Block, x: Tensor) -> Tensor:
    q, k, v = (torch.einsum("btc,chd->bhtd", x, w) for w in (m.q, m.k, m.v))
    scores = torch.einsum("bhtd,bhsd->bhts", q, k).softmax(-1)
    y = torch.einsum("bhts,bhsd->bthd", scores, v)
    return torch.einsum("bthd,hdc->btc", y, m.o)


# Each case has an attention function, further parts, and the sizes of the groups.
CASES: dict[str, tuple[Callable[[Block, Tensor], Tensor], dict[str, nn.Module | Tensor | int], list[int]]] = {
    "packed": (packed, {}, [4]),
    "split": (split, {}, [4]),
    "sliced": (sliced, {}, [4]),
    "heads in the batch": (batched, {}, [4]),
    "normed": (normed, {"scale": torch.rand(HEAD_WIDTH) + 1, "temperature": torch.rand(HEADS, 1, 1)}, [4]),
    "rotated": (rotated, {"q": nn.Linear(8, 8), "into": 8}, [2]),
    "grouped": (grouped, {"q": nn.Linear(8, 8), "into": 8}, [2]),
    "placed": (placed, {"q_bias": torch.randn(8), "v_bias": torch.randn(8), "table": torch.randn(9, 4)}, [4]),
    "placed by a network": (
        lambda m, x: placed(m, x, m.table(torch.arange(9.0)[:, None])),
        {"q_bias": torch.randn(8), "v_bias": torch.randn(8), "table": nn.Linear(1, 4)},
        [4],
    ),
    "summed": (
        summed,
        {"q": torch.randn(8, 4, 2), "k": torch.randn(8, 4, 2), "v": torch.randn(8, 4, 2), "o": torch.randn(4, 2, 8)},
        [4, 8],
    ),
    "addmm": (
        lambda m, x: torch.addmm(m.b, x.view(-1, x.size(-1)), m.w).view(*x.shape[:-1], 12).relu() @ m.v,
        {"b": torch.randn(12), "w": torch.randn(8, 12), "v": torch.randn(12, 8)},
        [12, 8],
    ),
    "a transposed weight": (
        lambda m, x: torch.mm(x.flatten(0, 1), m.w.t()).relu().view(*x.shape[:2], 12) @ m.v.T.to(x.dtype),
        {"w": torch.randn(12, 8), "v": torch.randn(8, 12)},
        [12, 8],
    ),
    "weighted by a vector": (
        lambda m, x: m.down((y := m.up(x)) * (y.tanh() @ m.v).softmax(-1)[..., None]),
        {"up": nn.Linear(8, 12), "v": torch.randn(12), "down": nn.Linear(12, 8)},
        [12, 8],
    ),
    "a view in the shape of another tensor": (
        lambda m, x: m.down((y := m.up(x)).relu().flatten(1).view_as(y) + m.b.expand_as(y)),
        {"up": nn.Linear(8, 12), "b": torch.randn(12), "down": nn.Linear(12, 8)},
        [12, 8],
    ),
    "sums over neighbours": (
        lambda m, x: m.down(
            torch.zeros_like(y := m.up(x)).scatter_add(1, torch.tensor([1, 0, 1, 4, 2])[:, None].expand(y.shape), y)
        ),
        {"up": nn.Linear(8, 12), "down": nn.Linear(12, 8)},
        [8, 12],
    ),
    "sums over neighbours by index": (
        lambda m, x: m.down((y := m.up(x)).index_add(1, torch.tensor([1, 0, 1, 4, 2]), y.relu())),
        {"up": nn.Linear(8, 12), "down": nn.Linear(12, 8)},
        [8, 12],
    ),
}


class Steps(nn.Module):
    """A recurrent layer, or its cell, between two linear layers."""

    def __init__(self, layer: nn.Module, width: int, run: Callable[[nn.Module, Tensor], Tensor]) -> None:
        super().__init__()
        self.a, self.layer, self.b, self.run = nn.Linear(8, 7), layer, nn.Linear(width, 3), run

    def forward(self, x: Tensor) -> Tensor:
        result: Tensor = self.b(self.run(self.layer, self.a(x)))
        return result


def in_steps(cell: nn.Module, x: Tensor) -> Tensor:
    state = cell(x[:, 0])
    for t in range(1, x.size(1)):
        state = cell(x[:, t], state)
    return state[0] if isinstance(state, tuple) else state


class PlainRecurrent(nn.Module):
    """A recurrent layer in plain code, which contains the width of the first state as a number."""

    def __init__(self, make: Callable[[Tensor, int], Tensor]) -> None:
        super().__init__()
        self.into, self.back, self.width, self.make = nn.Linear(7, 6), nn.Linear(6, 6), 6, make

    def forward(self, x: Tensor) -> Tensor:
        state = self.make(x, self.width)
        for t in range(x.size(1)):
            state = torch.tanh(self.into(x[:, t]) + self.back(state))
        return state


STEPS: dict[str, tuple[nn.Module, list[int]]] = {
    "lstm outputs": (Steps(nn.LSTM(7, 6, 2, batch_first=True), 6, lambda m, x: m(x)[0]), [7, 6]),
    "lstm last state": (Steps(nn.LSTM(7, 6), 6, lambda m, x: m(x)[1][0][-1]), [7, 6]),
    "gru in two directions": (Steps(nn.GRU(7, 6, 2, bidirectional=True), 12, lambda m, x: m(x)[0]), [7, 6]),
    "rnn without biases": (Steps(nn.RNN(7, 6, bias=False), 6, lambda m, x: m(x)[0]), [7, 6]),
    "lstm with a projection": (Steps(nn.LSTM(7, 6, proj_size=4), 4, lambda m, x: m(x)[0]), []),
    "gru from an initial state of ones": (
        Steps(nn.GRU(7, 6), 6, lambda m, x: m(x, torch.ones(1, x.size(1), 6).to(x))[0]),
        [7],
    ),
    "lstm cell": (Steps(nn.LSTMCell(7, 6), 6, in_steps), [7, 6]),
    "plain code with zeros": (
        Steps(PlainRecurrent(lambda x, width: torch.zeros(len(x), width).to(x)), 6, lambda m, x: m(x)),
        [7, 6],
    ),
    "plain code with new_zeros": (
        Steps(PlainRecurrent(lambda x, width: x.new_zeros((x.size(0), width))), 6, lambda m, x: m(x)),
        [7, 6],
    ),
    "gru cell": (Steps(nn.GRUCell(7, 6), 6, in_steps), [7, 6]),
}


@pytest.mark.parametrize("name", STEPS)
def test_cut_of_recurrent_layers_is_exact(name: str) -> None:
    module, sizes = STEPS[name]
    traced = trace_module(module, SEQUENCE)
    assert [group.size for group in traced.groups] == sizes
    rng = np.random.default_rng(0)
    for seed in range(3 if sizes else 0):
        indices = random_cut(traced, rng)
        check_cut(traced, SEQUENCE, indices, seed)
        expected = traced.cut(indices)(SEQUENCE)
        torch.testing.assert_close(loaded(traced, flatten_parameters(traced.module), indices)(SEQUENCE), expected)


@pytest.mark.parametrize("name", CASES)
def test_cut_of_code_with_numeric_widths_is_exact(name: str) -> None:
    mix, parts, sizes = CASES[name]
    torch.manual_seed(0)
    module = Block(mix, **parts)  # type: ignore[arg-type]
    traced = trace_module(module, SEQUENCE)
    assert [group.size for group in traced.groups] == sizes
    rng = np.random.default_rng(0)
    for seed in range(3):
        indices = random_cut(traced, rng)
        check_cut(traced, SEQUENCE, indices, seed)
        small = traced.cut(indices)
        for batch in (torch.randn(7, 5, 8), torch.randn(1, 5, 8)):
            expected = small(batch)
            assert expected.shape == batch.shape
            torch.testing.assert_close(loaded(traced, flatten_parameters(traced.module), indices)(batch), expected)


def test_trace_of_indices_without_values_reads_no_uninitialised_memory() -> None:
    """Indices on the meta device have no values, so the units that they pick must not depend on stray memory."""
    mix, parts, _ = CASES["placed by a network"]
    torch.use_deterministic_algorithms(True)
    try:
        recorder, _ = _record_shapes(Block(mix, **parts), SEQUENCE)  # type: ignore[arg-type]
        assert recorder is not None
        recorder.ties.resolve()
    finally:
        torch.use_deterministic_algorithms(False)


@pytest.mark.parametrize("name", ["packed", "placed", "placed by a network", "grouped"])
def test_trace_of_a_large_module_follows_only_shapes(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """PyTorch reads fewer sizes of tensors without values, which does not count as another path."""
    monkeypatch.setattr("fedraa.submodels.tracing.trace.LARGE", 0)
    test_cut_of_code_with_numeric_widths_is_exact(name)


def test_cut_under_vmap_gives_the_results_of_single_batches() -> None:
    traced = trace_module(Block(split), SEQUENCE)
    small = traced.cut((np.array([0, 2]),))
    x = torch.randn(3, 4, 5, 8)
    result = torch.func.vmap(lambda batch: torch.func.functional_call(small, {}, (batch,)))(x)
    torch.testing.assert_close(result, torch.stack([small(batch) for batch in x]))


def test_cut_of_full_width_keeps_the_class() -> None:
    traced = trace_module(Block(split), SEQUENCE)
    assert type(traced.make_skeleton((4,))) is Block
    assert isinstance(traced.make_skeleton((2,)), Block)


class Counted(nn.Module):
    """A layer that passes each row through one of two experts and restores the order of the rows."""

    def __init__(self) -> None:
        super().__init__()
        self.into, self.out = nn.Linear(WIDTH, 6), nn.Linear(6, 2)
        self.experts = nn.ModuleList(nn.Linear(6, 6) for _ in range(2))

    def forward(self, x: Tensor) -> Tensor:
        h, chosen = self.into(x).relu(), (x.amax(-1) == x.amin(-1)).long()
        y = torch.empty_like(h)
        y[chosen.argsort()] = torch.cat([expert(h[chosen == n]) for n, expert in enumerate(self.experts)])
        result: Tensor = self.out(y)
        return result


def test_experts_that_get_no_row_in_the_trial_are_cut() -> None:
    """Each expert has a row during the trace. In the trial, with noise in its inputs, one expert has none."""
    traced = trace_module(Counted(), torch.stack([torch.ones(WIDTH), torch.arange(float(WIDTH))]))
    assert [group.size for group in traced.groups] == [6]
    check_cut(traced, torch.randn(4, WIDTH), (np.array([1, 4]),))


class Masked(nn.Module):
    """Zeros in the shape of the first layer's output, into which the second layer writes."""

    def __init__(self, units: int) -> None:
        super().__init__()
        self.a, self.b, self.out = nn.Linear(WIDTH, units), nn.Linear(units, units), nn.Linear(units, 2)

    def forward(self, x: Tensor) -> Tensor:
        h, mask = self.a(x).relu(), x[:, 0] > 0
        y = h.new_zeros(h.shape)
        y[mask] = self.b(h[mask])
        result: Tensor = self.out(y)
        return result


def test_trial_detects_zeros_with_the_width_of_another_group() -> None:
    """Both groups are cut from two units to one. Only separate cuts show the difference of their widths."""
    x = torch.randn(4, WIDTH)
    traced = trace_module(Masked(2), x)
    ((place, resize),) = traced.sizes[""].items()
    assert [group.size for group in traced.groups] == [2, 2]
    assert resize.numbers == (SizeFormula(0, ((1, 1),)),)
    wrong = replace(traced, sizes={"": {place: resize._replace(numbers=(SizeFormula(0, ((0, 1),)),))}})
    assert CutChecker(traced, x, zeros=True).find_failure(traced, (0, 1)) is None
    assert CutChecker(wrong, x, zeros=True).find_failure(wrong, (0, 1)) is not None
    assert CutChecker(wrong, x).find_failure(wrong, (0, 1)) is None


def test_zeros_in_a_cut_get_the_width_of_the_values_written_to_them() -> None:
    """One of the two groups may be cut, and the other stays whole."""
    traced, x = trace_module(Masked(6), torch.randn(4, WIDTH)), torch.randn(4, WIDTH)
    assert [group.size for group in traced.groups] == [6, 6]
    for kept in ((2, 6), (6, 2), (3, 4)):
        check_cut(traced, x, tuple(np.arange(n) for n in kept))
