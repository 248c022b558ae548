"""Rules of one's own for functions that tracing does not know; a wrong one cuts nothing."""

from typing import Any

import pytest
import torch
from torch import Tensor, nn

import fedraa
from benchmarks.system.cut_check import check
from fedraa.submodels.tracing.trace import trace

EXAMPLE = torch.randn(2, 8)


class Sinc(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = nn.Linear(8, 6), nn.Linear(6, 2)

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.b(torch.sinc(self.a(x)) - 1)  # it is 1 at 0, so that silent units stay silent
        return y


class Mixed(Sinc):
    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.b(torch.logcumsumexp(self.a(x), -1))
        return y


def unchanged(recorder: Any, name: str, out: Tensor, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    recorder.put(out, recorder.labels(args[0]))


def test_an_own_rule_lets_units_through() -> None:
    assert trace(Sinc(), EXAMPLE).groups == ()
    with fedraa.tracing_rules({"sinc": unchanged}):
        traced = trace(Sinc(), EXAMPLE)
    assert [group.size for group in traced.groups] == [6]
    check(traced, EXAMPLE, (torch.tensor([1, 4]).numpy(),))
    assert trace(Sinc(), EXAMPLE).groups == ()


def test_a_wrong_rule_cuts_nothing() -> None:
    with fedraa.tracing_rules({"logcumsumexp": unchanged}):
        traced = trace(Mixed(), EXAMPLE)
    assert traced.groups == ()
    assert "another output than the full module" in traced.uncut["a"]


@pytest.mark.parametrize("rule", [3, lambda recorder: None])
def test_what_is_no_rule_is_refused(rule: Any) -> None:
    with (
        pytest.raises(ValueError, match=r"tracing_rules: 'sinc' has .*; takes a function \(recorder, name, out"),
        fedraa.tracing_rules({"sinc": rule}),
    ):
        pass
