"""Runs with personal models: a killed run resumes with the same bits, replays, and differs from a run of one model."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from equal_runs import check_resume
from refusals import refuses
from torch import nn

import fedraa
from benchmarks.system.killing import KillAt, Killed
from fedraa import Experiment, run
from fedraa.cli.plan import client_bytes
from fedraa.engine.build import build_run
from fedraa.engine.memory_check import Need

SMALL: dict[str, Any] = {
    "engine": "local",
    "hidden": (8,),
    "clients": 4,
    "partition": "labels:3",
    "local_steps": 3,
    "lr": 0.05,
    "checkpoint_every": 2,
    "seed": 5,
    "quiet": True,
}
DYNAMIC: list[dict[str, Any]] = [
    {"method": "feddyn", "rounds": 5, "participation": "sample:3"},
    {"method": "moon", "rounds": 5, "participation": "sample:3"},
    {"method": "fedbuff+moon", "updates": 10, "buffer_size": 2},
    {"method": "feddyn-async", "updates": 10, "buffer_size": 2},
    {"method": "fed-raa", "updates": 12, "compress": "topk:0.1", "error_feedback": "ef"},
    {"method": "heterofl", "rounds": 5, "compress": "topk:0.1", "error_feedback": "ef21"},
]
RUNS: list[dict[str, Any]] = [
    {"method": "fedper", "rounds": 5, "participation": "sample:3"},
    {"method": "fedrep", "rounds": 5},
    {"method": "lg-fedavg", "rounds": 5},
    {"method": "fed-raa", "updates": 20, "personal_layers": ("last-layer",)},
    # Slow clients train only the last layer, so that they send nothing.
    {"method": "timelyfl", "rounds": 5, "compute": "lognormal:1", "personal_layers": ("last-layer",)},
    {"method": "ditto", "rounds": 5, "participation": "sample:3"},
    {"method": "apfl", "rounds": 5},
    {"method": "pfedme", "rounds": 5, "override": {"local.algorithm.personal_lr": 0.02}},
    {"method": "heterofl+ditto", "rounds": 5},
    {"method": "fedasync+ditto", "updates": 20},
    {"method": "fed-raa+apfl", "updates": 20},
    {"method": "heterofl-async+fedrep", "updates": 20},
]


@pytest.mark.parametrize(
    ("method", "values"),
    [
        ("ditto", lambda size, head: size),
        ("apfl", lambda size, head: size + 1),
        ("fedper", lambda size, head: head),
        ("lg-fedavg", lambda size, head: size - head),
    ],
)
def test_memory_counts_the_values_of_each_client(method: str, values: Callable[[int, int], int]) -> None:
    plain = build_run(Experiment(**SMALL, method="fedavg", rounds=2))
    spec = build_run(Experiment(**SMALL, method=method, rounds=2))
    # The last layer has 8 inputs, 10 outputs and 10 biases.
    expected = 4 * values(plain.params.size, 90)
    need, of_plain = Need.of(spec), Need.of(plain)
    assert need.per_client - of_plain.per_client == expected
    assert need.server - of_plain.server == 4 * expected
    assert client_bytes(spec) - client_bytes(plain) == expected


@pytest.mark.parametrize("fields", DYNAMIC, ids=lambda fields: str(fields["method"]))
def test_killed_run_resumes_with_the_kept_terms(fields: dict[str, Any], tmp_path: Path) -> None:
    check_resume(SMALL | fields, tmp_path, kill_at=3)


@pytest.mark.parametrize("fields", RUNS, ids=lambda fields: str(fields["method"]))
def test_killed_run_resumes_with_the_personal_models(fields: dict[str, Any], tmp_path: Path) -> None:
    whole = check_resume(SMALL | fields, tmp_path, kill_at=3 if "rounds" in fields else 11)
    assert whole.evals["personal_mean"].iloc[-1] > whole.evals["client_mean"].iloc[-1]


def batch_norm_model() -> nn.Module:
    """Return a model with batch norm for digits."""
    torch.manual_seed(0)
    layers = (nn.Flatten(), nn.Linear(64, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 10))
    return nn.Sequential(*layers)


@pytest.mark.parametrize(
    ("fields", "module"),
    [
        ({"method": "ditto", "rounds": 3, "participation": "sample:2", "polyak_fraction": 0.5}, None),
        ({"method": "fed-raa", "updates": 9, "personal_layers": ("last-layer",)}, None),
        ({"method": "apfl", "rounds": 2, "personalised": 2}, None),
        ({"method": "fedavg", "rounds": 2, "personalised": 4}, None),
        ({"method": "fedbn", "rounds": 2}, batch_norm_model()),
    ],
    ids=lambda value: str(value["method"]) if isinstance(value, dict) else "",
)
def test_loaded_personal_models_have_the_accuracies_of_the_run(
    fields: dict[str, Any], module: nn.Module | None, tmp_path: Path
) -> None:
    fields = {**SMALL, **fields, "client_evals": "final"}
    if module is not None:
        del fields["hidden"]
    history = run(Experiment(**fields, out=tmp_path / "run"), model=module)
    data = fedraa.load_dataset("digits")
    rows = history.clients
    measured = rows["personal_accuracy"].dropna()
    assert len(measured) == fields.get("personalised", 4)
    assert measured.mean() == pytest.approx(history.evals["personal_mean"].iloc[-1])
    networks = [fedraa.load_personal_model(tmp_path / "run", client, model=module) for client in range(4)]
    for client in measured.index:
        test = history.partition.test[client]
        with torch.inference_mode():
            predicted = networks[client](data.x_test[test]).argmax(1).numpy()
        assert measured[client] == pytest.approx(np.mean(predicted == data.y_test[test]))
    weights = {tuple(nn.utils.parameters_to_vector(network.parameters()).tolist()) for network in networks}
    assert len(weights) > 1
    assert not any(network.training for network in networks)


def test_personal_models_of_an_interrupted_run_load_from_its_checkpoint(tmp_path: Path) -> None:
    fields = {**SMALL, "method": "ditto", "eval_every": 1}
    with pytest.raises(Killed):
        run(Experiment(**fields, rounds=5, out=tmp_path / "killed"), callbacks=[KillAt(11)])
    # The checkpoint of step 2 is the last one before the kill in round 3.
    run(Experiment(**fields, rounds=2, out=tmp_path / "short"))
    killed, short = (fedraa.load_personal_model(tmp_path / name, 1).state_dict() for name in ("killed", "short"))
    for name, values in killed.items():
        torch.testing.assert_close(values, short[name], rtol=0, atol=0)


def test_personal_models_that_do_not_exist_are_refused(tmp_path: Path) -> None:
    run(Experiment(**SMALL, method="ditto", rounds=1, out=tmp_path / "ditto"))
    for client in (-1, 4, "1"):
        with refuses("client", got=client):
            fedraa.load_personal_model(tmp_path / "ditto", client)  # type: ignore[arg-type]
    run(Experiment(**SMALL, method="fedavg", rounds=1, out=tmp_path / "fedavg"))
    with refuses("run"):
        fedraa.load_personal_model(tmp_path / "fedavg", 0)
