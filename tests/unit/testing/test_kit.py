"""Built-in components pass `fedraa check`, and six kinds of broken components fail with one sentence each."""

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from promises import only
from refusals import refuses

import fedraa as fl
from fedraa.cli.main import main
from fedraa.client.gradient_transforms import Clipping, Proximal, WeightDecay
from fedraa.components.text import text_of
from fedraa.testing import kit
from fedraa.testing.kinds import KINDS, is_correct
from fedraa.testing.kit import PROCESS, RUNS, SEEDED, STATE, WORKERS
from fedraa.testing.tester import COVERED, GIVEN

SELECTIONS = ("uniform", "weighted", "round-robin", "available", "power-of-choice", "oort", "routing", "tifl")
VALUES = {
    ("submodel", "fragments"): "fragments((0.4, 0.6))",
    ("participation", "sample"): "sample:3",
    ("participation", "bernoulli"): "bernoulli:0.5",
    ("participation", "poisson"): "poisson:0.5",
    **{("participation", name): f"{name}:3" for name in SELECTIONS},
    ("compressor", "topk"): "topk:0.2",
    ("compressor", "randomk"): "randomk:0.2",
    ("compressor", "qsgd"): "qsgd:4",
}
# These partitioners need images or data with client ids, and these data need files.
OF_DATA = {"rotation", "colour", "natural", "folder", "csv", "npy", "hf"}
BUILT_IN = [
    *(
        (name, VALUES.get((name, each), each))
        for name, kind in KINDS.items()
        for each in kind.registry.names()
        if each not in OF_DATA
    ),
    *(("gradient-transform", term) for term in (Proximal(0.1), Clipping(1.0), WeightDecay(0.01))),
    ("metric", is_correct),
]


# Fast tests check the usual component of each kind and those with the most state. Slow tests check all components.
IN_SHORT = {
    "scheduler": ("gre-raa", "offline"),
    "staleness": ("constant", "polynomial"),
    "async-rule": ("convex-mix", "buffer", "ringleader"),
    "aggregator": ("covered", "memorised", "flora"),
    "participation": ("all", "bernoulli:0.5", "oort:3"),
    "partitioner": ("dirichlet", "mixture"),
    "submodel": ("fragments((0.4, 0.6))", "rolling", "bernoulli", "adaptive-pruning"),
    "compressor": ("topk:0.2", "qsgd:4", "sign"),
    "objective": ("classification", "segmentation"),
    "transform": ("crop",),
    "server-optimizer": ("sgd", "adam"),
    "local-optimizer": ("adam", "dog"),
}


def marks_of(kind: str, part: Any) -> list[pytest.MarkDecorator]:
    return [pytest.mark.slow] if part not in IN_SHORT.get(kind, (part,)) else []


@pytest.mark.parametrize(
    ("kind", "part"),
    [pytest.param(kind, part, id=f"{kind} {text_of(part)}", marks=marks_of(kind, part)) for kind, part in BUILT_IN],
)
def test_built_in_component_passes_all_checks(kind: str, part: Any) -> None:
    findings = fl.check(part, as_=kind)
    assert findings.held, repr(findings)
    looked_at = [promise for promise, finding in findings.lines if finding == "held"]
    assert len(looked_at) == len(findings.lines) - 1 >= 6
    assert findings.lines[-1][0] == "costs"


class Unseeded(fl.Scheduler):
    def choose(self, view: Any, rng: Any) -> int:
        return int(np.random.default_rng().choice(view.feasible))


class OfTheProcess(fl.Compressor):
    def apply(self, delta: Any, rng: Any) -> Any:
        return delta * np.random.uniform(0.9, 1.1)

    def bytes(self, coordinates: int) -> int:
        return 4 * coordinates


def test_component_with_unseeded_random_numbers_fails() -> None:
    only(Unseeded(), SEEDED, "Unseeded ", " event ")
    only(OfTheProcess, SEEDED, "OfTheProcess ", " rng ")


class Forgetful(fl.Scheduler):
    """A scheduler that takes the fragments in turn, and does not save its state."""

    def __init__(self) -> None:
        self.turn = 0

    def choose(self, view: Any, rng: Any) -> int:
        self.turn += 1
        return int(view.feasible[self.turn % len(view.feasible)])

    def state(self) -> dict[str, Any]:
        return {}


class HalfMomentum(fl.ServerOptimizer):
    """A server optimizer that saves its momentum and does not restore it."""

    def start(self, size: int) -> None:
        self.m = np.zeros(size, np.float32)

    def step(self, params: Any, delta: Any, moved: Any) -> None:
        self.m = self.m / 2 + delta
        params[moved] += self.m[moved]

    def restore(self, state: Any) -> None:
        pass


class Unfit(Forgetful):
    """A component with state that no checkpoint can hold."""

    def __init__(self) -> None:
        super().__init__()
        self.seen = {1}

    def state(self) -> dict[str, Any]:
        return vars(self)


def test_component_that_does_not_save_its_state_fails() -> None:
    only(Forgetful(), STATE, "Forgetful ", " decision ")
    only(HalfMomentum(), STATE, "HalfMomentum ", "restore()")
    # No run begins with this component.
    only(Unfit(), RUNS, "Unfit ", " set")


SET = """
import fedraa as fl

class FirstOfASet(fl.Scheduler):
    def choose(self, view, rng):
        names = {f"fragment {j} of {view.client} at {view.turn}": j for j in view.feasible}
        return int(names[next(iter(set(names)))])
"""


class Counting(fl.Compressor):
    """A compressor whose result depends on the number of earlier calls: it sends only every second delta."""

    calls = 0

    def apply(self, delta: Any, rng: Any) -> Any:
        self.calls += 1
        return delta * (self.calls % 2)

    def bytes(self, coordinates: int) -> int:
        return 4 * coordinates


CALLS = [0]


def global_counter(staleness: int) -> float:
    CALLS[0] += 1
    return 1 / CALLS[0]


def test_component_that_depends_on_hash_order_fails(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "part_of_a_set.py").write_text(SET)
    monkeypatch.syspath_prepend(tmp_path)
    only("part_of_a_set:FirstOfASet", PROCESS, "FirstOfASet ")


def test_component_that_depends_on_the_order_of_calls_fails() -> None:
    def counter(staleness: int) -> float:
        return global_counter(staleness)

    only(Counting(), WORKERS, "Counting ", " event ")
    with pytest.raises(AssertionError, match=r"^counter .* event "):
        fl.testing.check(counter, as_="staleness")
    only(counter, SEEDED, "counter ", " global", as_="staleness")


class Median(fl.Aggregator):
    """An aggregator that stores all deltas of a round, and declares almost no memory."""

    def start(self, size: int, clients: int) -> None:
        self.rows, self.size = [], size

    def add(self, contribution: Any) -> None:
        row = np.zeros(self.size, np.float32)
        row[contribution.where] = contribution.delta
        self.rows.append(row)

    def finish(self, totals: Any) -> Any:
        rows, self.rows = self.rows, []
        return np.median(rows, axis=0).astype(np.float32), totals.covered

    def memory(self, size: int, clients: int) -> int:
        return 4 * size


class HonestMedian(Median):
    def memory(self, size: int, clients: int) -> int:
        return 4 * size * clients


@pytest.mark.usefixtures("no_other_processes")
def test_component_with_a_wrong_memory_claim_fails() -> None:
    findings = fl.check(Median())
    assert len(findings.failures) == 1
    assert findings.failures[0].startswith("Median holds ")
    assert re.search(r" 100,000 .*memory\(\) .* 400,000\b", findings.failures[0])
    assert fl.check(HonestMedian).held


class Everywhere(fl.ServerOptimizer):
    def step(self, params: Any, delta: Any, moved: Any) -> None:
        params += delta

    def state(self) -> dict[str, Any]:
        return {}


class MovesAll(HonestMedian):
    def finish(self, totals: Any) -> Any:
        mean, moved = super().finish(totals)
        return mean, np.ones_like(moved)


class Drifts(fl.GradientTransform):
    masked = False

    def apply(self, gradient: Any, context: Any) -> None:
        gradient.add_(1e-3)


@pytest.mark.usefixtures("no_other_processes")
def test_component_that_changes_uncovered_coordinates_fails() -> None:
    only(Everywhere(), COVERED, "Everywhere ", "`moved`")
    only(MovesAll(), COVERED, "MovesAll ", " client ")
    only(Drifts(), COVERED, "Drifts ", "masked = False")


class Claims(fl.Scheduler):
    def choose(self, view: Any, rng: Any) -> int:
        view.sent[0] += 1
        return int(view.feasible[0])


class InPlace(fl.AsyncRule):
    def __init__(self, spoilt: str) -> None:
        self.spoilt = spoilt

    def apply_update(self, update: Any, model: Any) -> fl.ApplyResult:
        delta = np.subtract(update.new, update.sent, out=getattr(update, self.spoilt))
        model.params[update.where] += np.float32(0.5) * delta
        return fl.ApplyResult(0.5)


def test_component_that_changes_its_arguments_fails() -> None:
    only(InPlace("new"), GIVEN, "InPlace ", " update.new")
    # In a run this buffer is read-only, because other code reads it later.
    (failure,) = fl.check(InPlace("sent")).failures
    assert re.search(
        r"InPlace .*ValueError: .*read-only; correct InPlace.apply_update \(test_kit.py, line \d+\)$", failure
    )
    only(Claims(), RUNS, "Claims ", "ValueError", "read-only")


class Grows(fl.AsyncRule):
    def apply_update(self, update: Any, model: Any) -> fl.ApplyResult:
        model.params += update.staleness
        return fl.ApplyResult(1.0)


def test_rule_that_assigns_the_parameters_fails_with_the_line_and_the_correction() -> None:
    line = Grows.apply_update.__code__.co_firstlineno + 1
    only(Grows(), RUNS, "params[:]", f"test_kit.py, line {line}")


class Raises(fl.Scheduler):
    def choose(self, view: Any, rng: Any) -> int:
        return 99


def test_component_with_an_impossible_choice_fails() -> None:
    findings = fl.check(Raises)
    assert repr(findings).splitlines()[0] == "Raises"
    (failure,) = findings.failures
    assert re.fullmatch(r"Raises .*\b99\b.*client 0\b.*\b0 to 2; correct Raises", failure)


@pytest.mark.parametrize(
    ("component", "names"),
    [
        (lambda staleness: 1.0, "staleness(staleness), .*partitioner(labels, clients, rng), .*metric"),
        ("bernoulli", "bernoulli .*participation, submodel"),
        (3, "3 .*package.module:Name"),
        ("nowhere:Part", "'nowhere:Part'"),
        ("gre-rao", "gre-rao "),
    ],
)
def test_check_refuses_ambiguous_or_unknown_components(component: object, names: str) -> None:
    with pytest.raises(ValueError, match=r"^component: ") as caught:
        fl.check(component)
    for name in names.split(" .*"):
        assert name in str(caught.value)


OWN = """
import fedraa as fl

class LowestLoss(fl.Scheduler):
    def choose(self, view, rng):
        return min(view.feasible, key=view.losses.__getitem__)

class Careless(LowestLoss):
    def choose(self, view, rng):
        view.losses[0] = 0
        return super().choose(view, rng)

def slow(staleness):
    return 0.9 ** staleness
"""


def test_command_check_prints_the_checks_and_exits_with_0_1_or_2(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "parts_on_their_own.py").write_text(OWN)
    monkeypatch.syspath_prepend(tmp_path)
    # test_component_that_depends_on_hash_order_fails needs two other processes. Here one is enough.
    monkeypatch.setattr("fedraa.testing.other_process.ORDERS", ("1",))

    def run_check(*arguments: str) -> tuple[int, str, str]:
        code = main(["check", *arguments])
        return (code, *capsys.readouterr())

    code, out, err = run_check("parts_on_their_own:LowestLoss")
    assert (code, err) == (0, "")
    assert [line.split()[-1] for line in out.splitlines()[1:-1]] == ["held"] * 7
    monkeypatch.setattr(kit, "can_travel", lambda kind, part: False)
    code, out, err = run_check("parts_on_their_own:Careless")
    assert (code, err) == (1, "fedraa: Careless: it fails 1 check\n")
    assert re.search(r"Careless .*ValueError: .*read-only", out)
    assert run_check("parts_on_their_own:slow")[0] == 2
    assert run_check("parts_on_their_own:slow", "--as", "staleness")[0] == 0
    assert run_check("parts_on_their_own:Slow")[0] == 2


def make_unpicklable() -> Callable[[int], float]:
    return lambda staleness: 0.5


def test_function_that_cannot_be_pickled_is_checked() -> None:
    fl.testing.check(make_unpicklable(), as_="staleness")
    with refuses("as", "scheduler, staleness, async-rule", got="planner"):
        fl.testing.check(make_unpicklable(), as_="planner")
