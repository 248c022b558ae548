"""Private runs: a killed run resumes with the same bits, its directory replays, and its summary has epsilon."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from equal_runs import SMALL, check_resume
from refusals import refuses
from torch import nn

import fedraa
from fedraa import Experiment, run
from fedraa.cli.plan_privacy import privacy_lines
from fedraa.engine.build import build_run
from fedraa.server.async_rule import ApplyResult, AsyncModel, AsyncRule, ClientUpdate

pytest.importorskip("dp_accounting", reason="the extra `privacy` is not installed")

ADAPTIVE = "central-adaptive(bit_noise=2.0)"


# A mean over the clients that have a label would reveal these clients.
NO_HEAD = {"update.owned_head": False}


@pytest.mark.parametrize(
    "fields",
    [
        {"method": "fedavg", "weights": "uniform", "participation": "poisson:0.3", "rounds": 8, "privacy": "central"},
        {
            "method": "heterofl",
            "weights": "uniform",
            "override": NO_HEAD,
            "rounds": 4,
            "privacy": ADAPTIVE,
        },
        {"method": "fed-raa-sync", "weights": "uniform", "rounds": 4, "privacy": "central"},
        {"method": "fedbuff", "buffer_size": 3, "updates": 8, "privacy": ADAPTIVE},
        {"method": "fedasync", "updates": 24, "privacy": "central"},
        {"method": "fed-raa", "updates": 24, "privacy": ADAPTIVE},
        {"method": "heterofl-async", "updates": 24, "privacy": "local"},
    ],
    ids=lambda fields: f"{fields['method']}-{fields['privacy']}",
)
def test_private_run_resumes_and_replays(fields: dict[str, Any], tmp_path: Path) -> None:
    assert check_resume(SMALL | fields, tmp_path, kill_at=7).summary["privacy"]["epsilon"] > 0


def test_empty_poisson_rounds_are_logged_and_move_the_model(tmp_path: Path) -> None:
    fields = {"method": "fedavg", "weights": "uniform", "participation": "poisson:0.02", "privacy": "central"}
    history = run(Experiment(**SMALL, **fields, rounds=6, out=tmp_path / "run"))
    rounds = [line for line in history.lines() if line["kind"] == "round"]
    assert len(rounds) == history.summary["privacy"]["releases"] == 6
    assert any(line["clients"] == 0 for line in rounds)
    losses = history.evals["loss"].to_numpy()
    assert np.unique(losses).size == len(losses)
    fedraa.replay(tmp_path / "run")


class NeedsNoLosses(AsyncRule):
    """A custom rule that fails if it receives a training loss."""

    def apply_update(self, update: ClientUpdate, model: AsyncModel) -> ApplyResult:
        assert np.isposinf(update.loss)
        model.params[update.where] += np.float32(0.1) * update.delta
        return ApplyResult(0.1)


@pytest.mark.parametrize("privacy", ["central", "local"])
def test_custom_rule_receives_no_losses(privacy: str, tmp_path: Path) -> None:
    rule = NeedsNoLosses()
    history = run(Experiment(**SMALL, async_rule=rule, privacy=privacy, updates=4, out=tmp_path / "run"))
    assert history.summary["steps"] == 4


def test_momentum_of_clients_survives_a_round_without_updates(tmp_path: Path) -> None:
    """The noise moves the model, but no client made local steps by whose length FedCM could divide it."""
    fields = {"method": "fedcm", "participation": "sample:1", "privacy": "central", "rounds": 8}
    late = {"deadline": 0.05, "compute": "lognormal:1"}
    history = run(Experiment(**SMALL, **fields, **late, out=tmp_path / "run"))
    kinds = [line["kind"] for line in history.lines()]
    clients = [line["clients"] for line in history.lines() if line["kind"] == "round"]
    assert 1 in clients[clients.index(0) :]
    assert "drop" not in kinds
    assert np.isfinite(history.evals["loss"].to_numpy()).all()


@pytest.mark.parametrize("fields", [{"method": "fed-raa", "lr_schedule": "adaptive"}, {"method": "fed-quilt"}], ids=str)
def test_adaptive_rate_is_refused_and_the_constant_rate_is_accepted(fields: dict[str, Any]) -> None:
    private: dict[str, Any] = {**fields, "privacy": "central", "clients": 8, "engine": "local"}
    with refuses("lr_schedule", "--lr-schedule constant", got="adaptive"):
        build_run(Experiment(**private))
    assert build_run(Experiment(**private | {"lr_schedule": "constant", "lr": 0.05})).privacy is not None


@pytest.mark.parametrize(
    "fields",
    [{"method": "fedgmr"}, {"method": "fednova-async", "buffer_size": 1, "override": {"update.reference_steps": 5}}],
)
def test_weights_by_samples_or_steps_are_refused(fields: dict[str, Any]) -> None:
    """Such weights may exceed 1, and the noise is for weights of at most 1."""
    with refuses("privacy", str(fields["method"])):
        build_run(Experiment(**fields, lr_schedule="constant", lr=0.05, privacy="central(noise=1, clip=1)", updates=5))


def test_batch_norm_is_refused() -> None:
    model = nn.Sequential(nn.Flatten(), nn.Linear(64, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 10))
    fields = {name: value for name, value in SMALL.items() if name != "hidden"}
    with refuses("model"):
        run(Experiment(**fields, method="fedasync", privacy="central"), model=model)


@pytest.mark.parametrize(
    "fields",
    [
        {"method": "fedbuff", "buffer_size": 3, "updates": 9, "privacy": "central"},
        {"method": "fedavg", "weights": "uniform", "participation": "sample:3", "rounds": 6, "privacy": "central"},
        {"method": "fed-raa", "updates": 20, "privacy": "central"},
    ],
    ids=lambda fields: fields["method"],
)
def test_plan_shows_the_epsilon_of_the_run(fields: dict[str, Any], tmp_path: Path) -> None:
    experiment = Experiment(**SMALL, **fields, out=tmp_path / "run")
    line = privacy_lines(build_run(experiment), None)[0]
    assert f"gives epsilon {run(experiment).summary['privacy']['epsilon']:.4g} at" in line
