"""Custom rules for functions without a tracing rule. A wrong rule cuts nothing."""

from functools import partial
from typing import Any

import pytest
import torch
from refusals import refuses
from torch import Tensor, nn

import fedraa
from benchmarks.system.cut_check import check_cut
from fedraa.submodels.tracing.rules import described_rules
from fedraa.submodels.tracing.trace import trace_module

EXAMPLE = torch.randn(2, 8)


class Sinc(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = nn.Linear(8, 6), nn.Linear(6, 2)

    def forward(self, x: Tensor) -> Tensor:
        # The function is 1 at 0, so the difference keeps silent units silent.
        y: Tensor = self.b(torch.sinc(self.a(x)) - 1)
        return y


class Mixed(Sinc):
    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.b(torch.logcumsumexp(self.a(x), -1))
        return y


def unchanged(recorder: Any, name: str, out: Tensor, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    recorder.put(out, recorder.labels(args[0]))


def test_tracing_rules_correct_rule_lets_units_be_cut() -> None:
    assert trace_module(Sinc(), EXAMPLE).groups == ()
    with fedraa.tracing_rules({"sinc": unchanged}):
        traced = trace_module(Sinc(), EXAMPLE)
    assert [group.size for group in traced.groups] == [6]
    check_cut(traced, EXAMPLE, (torch.tensor([1, 4]).numpy(),))
    assert trace_module(Sinc(), EXAMPLE).groups == ()


def test_tracing_rules_wrong_rule_cuts_nothing() -> None:
    with fedraa.tracing_rules({"logcumsumexp": unchanged}):
        traced = trace_module(Mixed(), EXAMPLE)
    assert traced.groups == ()
    assert "another output than the full module" in traced.uncut["a"]


@pytest.mark.parametrize("seed", range(4))
def test_tracing_rules_rule_correct_for_only_some_values_cuts_nothing(seed: int) -> None:
    """A layer of two units that compares them. One cut and two rows do not show the difference."""

    def both(recorder: Any, name: str, out: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        for x in out:
            recorder.put(x, recorder.labels(args[0]))

    class Rising(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a, self.b = nn.Linear(8, 2), nn.Linear(2, 3)

        def forward(self, x: Tensor) -> Tensor:
            y: Tensor = self.b(torch.cummax(self.a(x), 1)[0])
            return y

    torch.manual_seed(seed)
    with fedraa.tracing_rules({"cummax": both}):
        assert trace_module(Rising(), torch.randn(8, 8)).groups == ()


@pytest.mark.parametrize(
    ("rule", "shown"),
    [
        (lambda r, name, out, args, kwargs: r.labels(args[0]), "recorder.put(out, labels)"),
        (lambda r, name, out, args, kwargs: r.put(out, r.labels(args[0])[0]), "[6]"),
        (lambda r, name, out, args, kwargs: r.put(out, r.labels(args[0]).numpy()), "array"),
        (lambda r, name, out, args, kwargs: r.put(out, r.labels(args[0]).float()), "float32"),
        (lambda r, name, out, args, kwargs: r.put(out, r.labels(args[0]) + 999), "recorder.labels(x)"),
        (lambda r, name, out, args, kwargs: r.put(out, -r.labels(args[0])), "recorder.labels(x)"),
        (lambda r, name, out, args, kwargs: 1 / 0, "division by zero"),
        (lambda r, name, out, args, kwargs: r.puts(out), "'puts'"),
    ],
)
def test_tracing_rules_failing_rule_is_refused(rule: Any, shown: str) -> None:
    with (
        refuses("tracing_rules", "'sinc'", shown),
        fedraa.tracing_rules({"sinc": rule}),
    ):
        trace_module(Sinc(), EXAMPLE)


@pytest.mark.parametrize("name", [torch.sinc, "torch.sinc", "sinc_", "", 3])
def test_tracing_rules_invalid_name_is_refused(name: Any) -> None:
    with (
        refuses("tracing_rules", got=name),
        fedraa.tracing_rules({name: unchanged}),
    ):
        pass


def test_tracing_rules_list_is_refused() -> None:
    with (
        refuses("tracing_rules", "dict"),
        # A user may pass a list.
        fedraa.tracing_rules([("sinc", unchanged)]),  # type: ignore[arg-type]
    ):
        pass


def test_tracing_rules_partial_rule_prevents_caching() -> None:
    with fedraa.tracing_rules({"sinc": unchanged}):
        assert described_rules() is not None
        with fedraa.tracing_rules({"relu": partial(unchanged)}):
            assert described_rules() is None


@pytest.mark.parametrize("rule", [3, lambda recorder: None])
def test_tracing_rules_invalid_rule_is_refused(rule: Any) -> None:
    with (
        refuses("tracing_rules 'sinc'", "recorder, name, out", got=rule),
        fedraa.tracing_rules({"sinc": rule}),
    ):
        pass
