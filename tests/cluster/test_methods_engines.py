"""Every method on both engines, with an MLP and a small CNN on digits: Ray gives the bits of one process."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from equal_runs import lines
from execution import execute_warm
from needed_models import needed_model

from fedraa import Experiment, replay, run
from fedraa.composition.registry import find_method, list_methods
from fedraa.engine.build import build_run
from fedraa.submodels.policies.pruning import AdaptivePruning

METHODS = list_methods()

CROSSED = [
    f"{submodel}+{solver}"
    for submodel in ("ist", "oap", "prunefl", "fedrolex")  # SubDisMO, Table 1
    for solver in ("fedavg", "fedprox", "scaffold", "fedadam")
]
# Together these crossings have a submodel of each kind, and each local training once.
CROSSED_IN_SHORT = ("ist+fedavg", "oap+fedprox", "prunefl+scaffold", "fedrolex+fedadam")
# Personal models without rounds, of the whole model and of fragments.
PERSONAL = ("fedasync+ditto", "fed-raa+apfl")
EVERY = [*METHODS, *CROSSED, *PERSONAL]
# One method for each way in which a convolution is cut, masked or split, and one that trains whole models.
CNN_IN_SHORT = {
    *("fed-raa", "fed-quilt", "fedavg", "heterofl", "fedrolex", "heterofl-async", "ist", "oap", "prunefl", "splitfed"),
    *("ra-fed", "ra-fed-units", "subdismo", "bernoulli", "bernoulli-kernels", "shuffled", "shuffled-kernels", "fedgmr"),
}
MODELS: dict[str, dict[str, Any]] = {"mlp": {"hidden": (32,)}, "cnn": {}}
CLIENTS, ROUNDS = 4, 2

# One method for each kind of message to a worker: full models, slices and masks, in rounds or as single tasks; masks of
# models that keep the other weights; versions that are trained again; additional buffers to the worker and back; and
# activations. `test_engines.py` has fragments.
ON_RAY = {
    "mlp": [
        "scaffold",
        "prunefl",
        "splitfed",
        "ram-fed",
        "ringleader",
        "salf",
        "padamfed",
        "fedasync+ditto",
    ],
    "cnn": ["ist"],
}


def experiment(method: str, model: str, **fields: Any) -> Experiment:
    budget = {"updates": CLIENTS * ROUNDS} if find_method(method).asynchronous else {"rounds": ROUNDS}
    if isinstance(find_method(method).submodel, AdaptivePruning):
        # In the initial rounds only the first client trains.
        budget["rounds"] += AdaptivePruning.initial
    if find_method(method).path("buffer_size"):
        budget["buffer_size"] = 2
    return Experiment(
        method=method,
        **{"model": model, **MODELS[model], **needed_model(method)},
        clients=CLIENTS,
        local_steps=2,
        checkpoint_every=1000,
        **budget,
        **fields,
    )


def local_cases() -> list[Any]:
    short = [(method, "mlp") for method in (*METHODS, *CROSSED_IN_SHORT, *PERSONAL)]
    short += [(name, "cnn") for name in CNN_IN_SHORT]
    return [
        pytest.param(method, model, marks=[] if (method, model) in short else [pytest.mark.slow])
        for method in EVERY
        for model in MODELS
    ]


@pytest.mark.parametrize(("method", "model"), local_cases())
def test_method_trains_every_client_and_its_log_is_consistent(method: str, model: str, tmp_path: Path) -> None:
    """Two rounds, or an equal number of tasks: each client gets work, and the trained model is finite.

    Every decision, weight and time in the log follows from the earlier lines and the rules of the method.
    """
    history = run(experiment(method, model, engine="local", out=tmp_path / "run"))
    sent, commits = ([line for line in history.lines() if line["kind"] == kind] for kind in ("dispatch", "commit"))
    assert {line["client"] for line in sent} == {*range(CLIENTS)}
    assert len(commits) >= CLIENTS * ROUNDS
    assert np.isfinite(history.evals[["accuracy", "loss"]].to_numpy()).all()
    assert history.evals["loss"].iloc[-1] != history.evals["loss"].iloc[0]
    for tensor in torch.load(tmp_path / "run" / "model.pt", weights_only=True).values():
        assert torch.isfinite(tensor).all()
    assert "consistent" in replay(tmp_path / "run")


def ray_cases(model: str) -> list[Any]:
    return [
        pytest.param(model, method, marks=[] if method in ON_RAY[model] else [pytest.mark.slow]) for method in EVERY
    ]


@pytest.mark.cluster
@pytest.mark.usefixtures("cluster")
@pytest.mark.parametrize(("model", "method"), ray_cases("mlp") + ray_cases("cnn"))
def test_method_gives_the_same_run_on_ray(
    model: str, method: str, warm_workers: tuple[Any, ...], tmp_path: Path
) -> None:
    here = run(experiment(method, model, engine="local", out=tmp_path / "local"))
    there = execute_warm(warm_workers, build_run(experiment(method, model)), tmp_path / "ray")
    assert lines(there.directory) == lines(here.directory)
    assert there.lines()[-1]["model_sha256"] == here.lines()[-1]["model_sha256"]
    assert there.evals.drop(columns="wall").equals(here.evals.drop(columns="wall"))
