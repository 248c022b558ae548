"""The blocks that a client can skip, and their shares of the model's FLOPs."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

from fedraa.submodels.blocks import find_removable_blocks
from fedraa.submodels.whole import take_whole

EXAMPLE = torch.randn(2, 5, 8)
# Forward FLOPs per sample of the last layer, which reads the mean of 8 features over the positions.
HEAD_FLOPS = 2 * 8 * 3


class Net(nn.Module):
    def __init__(self, *blocks: nn.Module, call: Callable[[nn.Module, Tensor], Tensor] = lambda block, x: block(x)):
        super().__init__()
        self.blocks = nn.ModuleList(blocks)
        self.head = nn.Linear(8, 3)
        self.call = call

    def forward(self, x: Tensor) -> Tensor:
        for block in self.blocks:
            x = self.call(block, x)
        out: Tensor = self.head(x.mean(1))
        return out


class Residual(nn.Module):
    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner = inner

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = x + self.inner(x)
        return out


class Attention(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.attention = nn.MultiheadAttention(8, 2, batch_first=True)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.attention(x, x, x, need_weights=False)[0]
        return out


class TwoResiduals(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first = Residual(nn.Linear(8, 8))
        self.second = Residual(nn.Linear(8, 8))

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.second(self.first(x))
        return out


def shares(net: nn.Module) -> dict[str, float]:
    return {block.name: block.work for block in find_removable_blocks(take_whole(net, EXAMPLE), EXAMPLE)}


def test_a_blocks_share_includes_its_attention() -> None:
    """At 5 positions with 2 heads of width 4: three projections, the scores, the weighted sum, the output."""
    flops = 5 * 2 * 8 * 24 + 2 * (2 * 5 * 5 * 4) + 2 * (2 * 5 * 5 * 4) + 5 * 2 * 8 * 8
    share = flops / (2 * flops + HEAD_FLOPS)
    found = shares(Net(Residual(Attention()), Residual(Attention())))
    assert found == pytest.approx({"blocks.0": share, "blocks.1": share})
    assert torch.backends.mha.get_fastpath_enabled()


def test_a_block_with_a_named_argument_can_be_skipped() -> None:
    blocks = [Residual(nn.Linear(8, 8)) for _ in range(2)]
    assert set(shares(Net(*blocks, call=lambda block, x: block(x=x)))) == {"blocks.0", "blocks.1"}


def test_a_block_inside_of_a_block_does_not_count() -> None:
    found = shares(Net(TwoResiduals(), TwoResiduals()))
    assert set(found) == {"blocks.0", "blocks.1"}
    assert sum(found.values()) < 1


def test_blocks_that_share_a_weight_stay() -> None:
    blocks = [Residual(nn.Linear(8, 8)) for _ in range(3)]
    blocks[1].inner.weight = blocks[0].inner.weight
    assert set(shares(Net(*blocks))) == {"blocks.2"}
