"""An error about unusable values in the model names the component that caused them, not the next client."""

from contextlib import nullcontext
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from refusals import refuses

import fedraa as fl
from fedraa.client.trainer import Trainer
from fedraa.messages import Task, Update
from fedraa.methods.fedasync import ConvexMix
from fedraa.rundir.checkpoint import load_latest
from fedraa.rundir.file_names import CHECKPOINTS
from fedraa.server.round_state import RoundState
from fedraa.server.round_update import Mean
from fedraa.server.stores.local import LocalStore
from fedraa.server.update_checks import refuse_unsound
from fedraa.submodels.assignment import Submodel
from fedraa.testing.samples import make_vectors

SMALL: dict[str, Any] = {"engine": "local", "clients": 3, "hidden": (8,), "local_steps": 1, "quiet": True}


class Average(fl.Aggregator):
    """A mean in which one number becomes `value` in round 3. `counts` is True if the number counts as moved."""

    def __init__(self, value: float, counts: bool = True) -> None:
        # config.json stores attributes with the name of an argument, and it cannot store NaN.
        self.spoiled, self.counts = value, counts

    def start(self, size: int, clients: int) -> None:
        self.total, self.count, self.rounds = np.zeros(size, np.float32), 0, 0

    def add(self, contribution: Any) -> None:
        self.total[contribution.where] += contribution.delta
        self.count += 1

    def finish(self, totals: Any) -> Any:
        mean, moved = self.total / np.float32(self.count), totals.covered.copy()
        self.rounds += 1
        if self.rounds == 3:
            mean[4], moved[4] = self.spoiled, self.counts
        self.total, self.count = np.zeros_like(self.total), 0
        return mean, moved


class Step(fl.ServerOptimizer):
    def step(self, params: Any, delta: Any, moved: Any) -> None:
        params += delta
        params[2] = np.inf


class Rule(fl.AsyncRule):
    def apply_update(self, update: Any, model: Any) -> fl.ApplyResult:
        model.params[update.where] += update.delta * np.float32(np.nan if update.client == 1 else 1)
        return fl.ApplyResult(1.0)


class Late(fl.AsyncRule):
    """A buffer of three updates that spoils the model when it is full, or before."""

    def __init__(self, value: float, at: int) -> None:
        self.spoiled, self.at, self.count = value, at, 0

    def apply_update(self, update: Any, model: Any) -> fl.ApplyResult:
        self.count += 1
        if self.count == self.at:
            model.params[3] = self.spoiled
        return fl.ApplyResult(1.0, self.count % 3 == 0)


class Mix(ConvexMix):
    """A convex mix that then spoils the model."""

    mixing_formula = None

    def apply_update(self, update: Any, model: Any) -> fl.ApplyResult:
        super().apply_update(update, model)
        model.params[-1] = np.nan
        return fl.ApplyResult(0.5)


class State(RoundState):
    def close(self, params: Any, delta: Any, moved: Any, scale: float) -> None:
        params[3] = np.nan


PARTS: list[tuple[dict[str, Any], str, tuple[str, ...]]] = [
    ({"aggregator": Average(np.nan)}, "aggregator", ("Average.finish", "not finite")),
    ({"aggregator": Average(1e30)}, "aggregator", ("Average.finish", "1e+30")),
    ({"server_optimizer": Step()}, "server_optimizer", ("Step", "not finite")),
    ({"server_lr": 1e35}, "server_optimizer", ("Sgd", "e+")),
    ({"method": fl.Method(update=Mean(auxiliary=State()))}, "auxiliary", ("State", "not finite")),
    ({"method": "fed-raa", "async_rule": Rule()}, "async_rule", ("Rule", "not finite", "client 1")),
    ({"method": "fed-raa", "async_rule": Late(np.nan, 6)}, "async_rule", ("Late", "not finite")),
    ({"method": "fed-raa", "async_rule": Late(1e13, 6)}, "async_rule", ("Late", "1e+13")),
    ({"method": "fed-raa", "async_rule": Late(-np.inf, 5)}, "async_rule", ("Late", "not finite")),
    ({"method": "fed-raa", "async_rule": Mix()}, "async_rule", ("Mix", "not finite")),
    ({"method": "fedasync", "staleness": lambda k: 1e30 if k else 1.0}, "staleness", ("1e+30",)),
    ({"method": "fedbuff", "staleness": lambda k: np.nan if k else 1.0}, "staleness", ("nan",)),
]


@pytest.mark.parametrize(("fields", "field", "names"), PARTS)
def test_error_names_an_unsound_component_and_last_checkpoint_is_finite(
    fields: dict[str, Any], field: str, names: tuple[str, ...], tmp_path: Path
) -> None:
    with refuses(field, *names):
        fl.run(
            **SMALL | {"method": "fedavg", "checkpoint_every": 1} | fields, dataset=make_vectors(), out=tmp_path / "run"
        )
    log = fl.History(tmp_path / "run").lines()
    assert not [line for line in log if line["kind"] in ("drop", "fault")]
    state = load_latest(tmp_path / "run" / CHECKPOINTS, lambda state: None)
    assert state is not None
    assert np.isfinite(state["server"]["params"]).all()


def test_non_finite_value_at_an_unmoved_coordinate_is_accepted(tmp_path: Path) -> None:
    history = fl.run(
        **SMALL,
        method="fedavg",
        rounds=5,
        aggregator=Average(np.nan, False),
        dataset=make_vectors(),
        out=tmp_path / "run",
    )
    assert np.isfinite(history.evals["loss"]).all()


def test_model_between_two_versions_is_checked_before_a_checkpoint(tmp_path: Path) -> None:
    """The rule spoils the model between two versions. Then the run is stopped, or its time limit is reached."""
    model = np.zeros(6, np.float32)
    store = LocalStore(model, [Submodel((6,), None)], Late(np.nan, 1), [1, 1])
    model[2] = np.nan
    with refuses("async_rule", "Late", "not finite"):
        store.state()


@pytest.mark.parametrize(("value", "sound"), [(9.9e11, True), (2e12, False), (np.nan, False), (-np.inf, False)])
def test_unsound_value_is_found_at_any_position(value: float, sound: bool) -> None:
    for place in (0, 4999, 9999):
        # The norm of this update is over the bound.
        params = np.full(10_000, 1e11, np.float32)
        params[place] = value
        with nullcontext() if sound else refuses("async_rule", "Rule"):
            refuse_unsound("async_rule", Rule(), params)


def test_slow_divergence_is_blamed_on_the_rule_and_not_on_clients(tmp_path: Path) -> None:
    """Each update is mixed in with -480: the values are finite, but in the end no client can train them."""
    with refuses("async_rule", "ConvexMix"):
        fl.run(
            **SMALL,
            method="fedasync",
            staleness=lambda k: -800.0,
            dataset=make_vectors(),
            updates=60,
            out=tmp_path / "run",
        )


def test_only_the_client_with_the_too_large_update_is_dropped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    train = Trainer.train

    def trained(self: Trainer, task: Task, *rest: Any) -> Update:
        update = train(self, task, *rest)
        if task.client == 1:
            update.params[:] = 1e30
        return update

    monkeypatch.setattr(Trainer, "train", trained)
    history = fl.run(**SMALL, method="fed-raa", updates=20, dataset=make_vectors(), out=tmp_path / "run")
    assert {line["client"] for line in history.lines() if line["kind"] == "drop"} == {1}
    assert np.isfinite(history.evals["loss"]).all()
