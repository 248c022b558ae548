"""`fedraa check` tests a whole method: built-in methods pass, and a broken round state fails with one sentence."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from promises import only
from refusals import refuses

import fedraa as fl
from fedraa.composition.registry import list_methods
from fedraa.testing.kit import MEMORY, PROCESS, STATE
from fedraa.testing.tester import COVERED, GIVEN

# Two methods with a round state, one with an update rule, and two that need another model.
FAST = ("scaffold", "mimelite", "fedbuff", "flora", "depthfl-feddyn")


@pytest.mark.usefixtures("no_other_processes")
@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=[] if name in FAST else [pytest.mark.slow]) for name in list_methods()]
)
def test_built_in_method_passes(name: str) -> None:
    findings = fl.check(name, as_="method")
    assert findings.held, repr(findings)
    assert findings.lines[-1][0] == "costs"


@dataclass
class Sums(fl.RoundState):
    """The sum of all deltas."""

    def start(self, run: Any) -> None:
        self._sum = np.zeros(run.size, np.float32)

    def receive(self, contribution: Any, assignment: Any, update: Any) -> None:
        self._sum[contribution.where] += contribution.delta

    def close(self, params: Any, delta: Any, moved: Any, scale: float) -> None:
        np.subtract(params, np.float32(0.01) * self._sum, out=params, where=moved)

    def memory(self, size: int, clients: int) -> int:
        return 4 * size


class Whole(Sums):
    state_fields = ("_sum",)


class Hidden(Whole):
    def memory(self, size: int, clients: int) -> int:
        return 0


class Doubles(Whole):
    def receive(self, contribution: Any, assignment: Any, update: Any) -> None:
        np.multiply(contribution.delta, 2, out=contribution.delta)


class MovesAll(Whole):
    def close(self, params: Any, delta: Any, moved: Any, scale: float) -> None:
        params *= np.float32(0.9)


def with_state(state: fl.RoundState) -> fl.Method:
    return fl.Method(name="mine", update=fl.Mean(auxiliary=state))


@pytest.mark.usefixtures("no_other_processes")
@pytest.mark.parametrize(
    ("state", "requirement", "word"),
    [
        (Sums(), STATE, "decision"),
        (Hidden(), MEMORY, "memory()"),
        (Doubles(), GIVEN, "delta"),
        (MovesAll(), COVERED, "moved"),
    ],
)
def test_broken_round_state_fails_one_check(state: fl.RoundState, requirement: str, word: str) -> None:
    only(with_state(state), requirement, "mine ", word)


MODULE = """
from dataclasses import dataclass, replace

import numpy as np

import fedraa as fl


@dataclass(frozen=True)
class Same(fl.LocalAlgorithm):
    pass


@dataclass
class Nothing(fl.RoundState):
    pass


METHOD = fl.Method(local=replace(fl.method("fedavg").local, algorithm=Same()), update=fl.Mean(auxiliary=Nothing()))
"""


def test_custom_method_is_checked_but_its_single_classes_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "my_kit_method.py").write_text(MODULE)
    monkeypatch.syspath_prepend(tmp_path)
    findings = fl.check("my_kit_method:METHOD")
    assert dict(findings.lines)[PROCESS] == "held"
    assert findings.held
    for name, base in (("Same", "LocalAlgorithm"), ("Nothing", "RoundState")):
        with refuses("component", name, base, "check the method"):
            fl.check(f"my_kit_method:{name}")
        with refuses("submodel", "submodels"):
            fl.check(f"my_kit_method:{name}", as_="submodel")
