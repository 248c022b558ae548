"""Mistakes in custom components are errors with a field. Runs of the same experiment share no state."""

from collections.abc import Callable
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np
import pytest
import torch
from refusals import refuses

import fedraa as fl
from fedraa.server.round_state import RoundState
from fedraa.server.round_update import Mean
from fedraa.server.schedule import AsyncSchedule

SMALL: dict[str, Any] = {"clients": 3, "hidden": (8,), "local_steps": 1, "quiet": True, "engine": "local"}


def scheduler(choice: Callable[..., Any]) -> fl.Scheduler:
    return type("Odd", (fl.Scheduler,), {"choose": choice})()


def rule(taken: object) -> fl.AsyncRule:
    return type("Odd", (fl.AsyncRule,), {"apply_update": lambda self, update, model: taken})()


def aggregator(finish: Callable[[Any], Any]) -> fl.Aggregator:
    class Odd(fl.Aggregator):
        def add(self, contribution: Any) -> None:
            pass

        def finish(self, totals: Any) -> Any:
            return finish(totals)

    return Odd()


def compressor(apply: Callable[..., Any], size: Callable[[int], Any] = lambda n: n) -> fl.Compressor:
    return type("Odd", (fl.Compressor,), {"apply": lambda self, d, rng: apply(d), "bytes": lambda self, n: size(n)})()


def policy(draw: Callable[..., Any]) -> fl.SubmodelPolicy:
    return type("Odd", (fl.SubmodelPolicy,), {"draw": lambda self, context: draw(context)})()


def cohort(drawn: object) -> fl.Participation:
    return type("Odd", (fl.Participation,), {"cohort": lambda self, clients, round, rng: drawn})()


class Keeps(fl.Scheduler):
    def __init__(self) -> None:
        self.seen: dict[int, int] = {}

    def choose(self, view: Any, rng: Any) -> int:
        self.seen[view.client] = 1
        return int(view.feasible[0])


def state(name: str) -> fl.Method:
    """Return a method whose round state fails in the method `name`."""
    return fl.Method(update=Mean(auxiliary=type("Odd", (RoundState,), {name: lambda *arguments: 1 / 0})()))


def joined(self: RoundState, contribution: Any, *rest: Any) -> None:
    contribution.change.join(lambda place, delta: 1 / 0)


def started(base: type, *others: str) -> Any:
    """Return a component whose `start` fails. It has the methods `others`, because its base class requires them."""
    return type("Odd", (base,), dict.fromkeys(("start", *others), lambda *arguments: 1 / 0))()


BEFORE_THE_START = [
    ({"method": state("start")}, "auxiliary: Odd .*ZeroDivision"),
    ({"method": "fedavg", "aggregator": started(fl.Aggregator, "add", "finish")}, "aggregator: Odd .*ZeroDivision"),
    ({"method": "fedavg", "server_optimizer": started(fl.ServerOptimizer, "step")}, "server_opt.*: Odd .*ZeroDivision"),
    ({"async_rule": started(fl.AsyncRule, "apply_update")}, "async_rule: Odd .*ZeroDivision"),
    ({"scheduler": scheduler(lambda self, view: 0)}, "scheduler: .*Odd .*TypeError"),
    ({"scheduler": scheduler(lambda self, view, rng: 1 / 0)}, "scheduler: .*Odd .*ZeroDivisionError"),
    ({"scheduler": scheduler(lambda self, view, rng: True)}, "scheduler: .*Odd.*True|scheduler: .*True.*Odd"),
    ({"scheduler": Keeps()}, "state: .*Keeps .*key 0"),
    ({"staleness": "polynomial(exponent='x')"}, r"staleness\.exponent: got 'x'"),
    ({"staleness": lambda: 1.0}, "staleness: .*<lambda> .*TypeError"),
    ({"compress": compressor(lambda d: d, lambda n: n / 3)}, r"compress: got \d.*Odd\.bytes"),
    ({"compress": compressor(lambda d: d, lambda n: -1)}, r"compress: got -1; Odd\.bytes"),
    ({"method": "fedavg", "participation": cohort(range(99))}, "participation: .*Odd"),
    ({"method": "fedavg", "participation": cohort([0.5])}, "participation: .*Odd .*TypeError"),
    ({"method": "fedavg", "submodel": policy(lambda context: None)}, "submodel: .*None"),
    (
        {"method": "fedavg", "submodel": policy(lambda c: c.run.masked(np.ones(3, bool)))},
        "submodel: .*3",
    ),
    ({"method": "fedavg", "scheduler": "random"}, "scheduler: .*fedavg"),
]


@pytest.mark.parametrize(("fields", "pattern"), BEFORE_THE_START)
def test_component_with_a_mistake_is_refused_before_the_start(
    tmp_path: Path, fields: dict[str, Any], pattern: str
) -> None:
    with pytest.raises(ValueError, match=f"^({pattern})"):
        fl.run(**SMALL | fields, out=tmp_path / "run")
    assert not (tmp_path / "run").exists()


IN_A_RUN = [
    ({"staleness": lambda staleness: 1 if staleness < 1 else 1 / 0}, "staleness: .*<lambda> .*ZeroDivision"),
    ({"async_rule": rule(fl.ApplyResult(float("nan")))}, "async_rule: .*ApplyResult"),
    ({"async_rule": rule(fl.ApplyResult(1.0, None))}, "async_rule: .*ApplyResult"),  # type: ignore[arg-type]
    ({"async_rule": rule(0.5)}, "async_rule: .*0.5"),
    *(({"method": state(name)}, "auxiliary: Odd .*ZeroDivision") for name in ("send", "receive", "close")),
    (
        {"method": fl.Method(update=Mean(auxiliary=type("Odd", (RoundState,), {"receive": joined})()))},
        r"method\.update: joined\..* ZeroDivision",
    ),
    (
        {"method": "fedavg", "aggregator": aggregator(lambda totals: 1 / 0)},
        "aggregator: .*Odd.* ZeroDivision",
    ),
    (
        {"method": "fedavg", "aggregator": aggregator(lambda totals: np.zeros(3, np.float32))},
        r"aggregator: got .*Odd\.finish returned .*; expected the delta \[d\] and the mask",
    ),
    (
        {"method": "fedavg", "aggregator": aggregator(lambda totals: (torch.zeros(3), totals.covered))},
        r"aggregator: .*Odd\.finish .*float32",
    ),
]


@pytest.mark.parametrize(("fields", "pattern"), IN_A_RUN)
def test_component_with_a_mistake_ends_the_run(tmp_path: Path, fields: dict[str, Any], pattern: str) -> None:
    with pytest.raises(ValueError, match=f"^({pattern})"):
        fl.run(**SMALL | fields, out=tmp_path / "run")


def test_error_names_a_compressor_that_fails_on_all_clients(tmp_path: Path) -> None:
    with refuses("compress", "Odd.apply") as caught:
        fl.run(**SMALL, compress=compressor(lambda delta: delta[:2]), out=tmp_path / "run")
    [note] = caught.value.__notes__
    assert "all 3" in note
    assert note.endswith("task 5")


def test_weight_of_a_rule_may_be_a_numpy_number(tmp_path: Path) -> None:
    own = rule(fl.ApplyResult(np.float32(0.5)))  # type: ignore[arg-type]
    history = fl.run(**SMALL, async_rule=own, updates=4, out=tmp_path / "run")
    assert "consistent" in fl.replay(history.directory)


@pytest.mark.parametrize(
    ("module", "error"), [("1 / 0", "ZeroDivisionError: division by zero"), ("def x(:", "SyntaxError")]
)
def test_module_that_fails_on_import_is_refused_with_its_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, module: str, error: str
) -> None:
    name = f"fails_{len(module)}"
    (tmp_path / f"{name}.py").write_text(module)
    monkeypatch.syspath_prepend(str(tmp_path))
    for field in ("scheduler", "dataset"):
        with refuses(field, error, got=f"{name}:X"):
            fl.run(**SMALL | {field: f"{name}:X"}, out=tmp_path / "run")


def test_method_refuses_components_of_the_wrong_kind() -> None:
    with refuses("method.update", "AsyncRule", "Mean", got=3):
        fl.Method(update=3)  # type: ignore[arg-type]
    with refuses("method.schedule", "Schedule", got="random"):
        fl.Method(schedule="random")  # type: ignore[arg-type]


def own_method() -> fl.Method:
    return fl.Method(paper="mine", update=Mean(aggregator=Mean().resolve_aggregator()), name="mine")


def test_custom_methods_are_compared_and_reported(tmp_path: Path) -> None:
    methods = [own_method(), "fedavg", "fed-raa"]
    frame = fl.compare(methods, time=1, scheduler="random", **SMALL, out=tmp_path / "runs")  # type: ignore[arg-type]
    assert list(frame["method"]) == ["mine", "fedavg", "fed-raa"]
    fl.report([tmp_path / "runs"], tmp_path / "page.html", theme="light")
    assert "mine" in (tmp_path / "page.html").read_text()


def test_resume_requires_a_method_with_a_locally_defined_component(tmp_path: Path) -> None:
    def method() -> fl.Method:
        class Here(fl.Scheduler):
            def choose(self, view: Any, rng: Any) -> int:
                return int(view.feasible[0])

        return fl.Method(schedule=AsyncSchedule(Here()), update=fl.method("fed-raa").update, name="mine")

    out = fl.run(**SMALL, method=method(), updates=3, out=tmp_path / "run").directory
    with refuses("run", "method=...)", "Here", got=out):
        fl.resume(out, updates=5)
    with refuses("method"):
        fl.resume(out, updates=5, method=own_method())
    assert fl.resume(out, updates=5, method=method()).summary["steps"] == 5


def test_resume_requires_a_model_that_a_local_function_makes(tmp_path: Path) -> None:
    def net(classes: int) -> torch.nn.Module:
        return torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(64, 8), torch.nn.Linear(8, classes))

    small = {name: value for name, value in SMALL.items() if name != "hidden"}
    out = fl.run(model=net, **small, updates=3, out=tmp_path / "run").directory
    with refuses("run", "model=...)", got=out):
        fl.resume(out, updates=5)
    assert fl.resume(out, updates=5, model=net).summary["steps"] == 5


def test_runs_of_one_experiment_share_no_state(tmp_path: Path) -> None:
    class Turns(fl.Scheduler):
        def __init__(self) -> None:
            self.turns = 0

        def choose(self, view: Any, rng: Any) -> int:
            self.turns += 1
            return int(view.feasible[self.turns % len(view.feasible)])

    mine = fl.Experiment(**SMALL, scheduler=Turns(), updates=9)
    digests = {fl.run(mine, out=tmp_path / name).summary["model_sha256"] for name in "ab"}
    assert len(digests) == 1
    assert mine.scheduler.turns == 0


def test_method_that_lists_an_unknown_option_as_refused_is_an_error() -> None:
    class Careful(RoundState):
        refuses = MappingProxyType({"weight_decay": "the formula has none"})

    method = fl.Method(name="careful", update=Mean(auxiliary=Careful()))
    with refuses("refuses", "careful", "aggregator", got="weight_decay"):
        fl.run(method=method, rounds=1, **SMALL)
