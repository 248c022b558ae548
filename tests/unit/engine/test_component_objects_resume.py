"""A run can be resumed if its components are mappings, objects or classes, also with NumPy numbers."""

import json
from enum import IntEnum
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from refusals import refuses

import fedraa as fl
from fedraa.client.compression import TopK
from fedraa.client.local_training import LocalTraining
from fedraa.components.text import text_of
from fedraa.composition.method import Method
from fedraa.ledger.participation import Sample
from fedraa.methods.fedbuff import FedBuffRule
from fedraa.replay.replay import replay
from fedraa.server.optimizers import Adaptive, Momentum
from fedraa.server.round_update import Mean
from fedraa.server.staleness import Polynomial
from fedraa.submodels.policies.policy import Capacities
from fedraa.submodels.policies.slices import Prefix, Rolling

SMALL: dict[str, Any] = {"dataset": "digits", "engine": "local", "clients": 4, "hidden": (8,), "local_steps": 2}
ROUNDS: dict[str, Any] = {"method": "fedavg", "rounds": 4}
UPDATES: dict[str, Any] = {"method": "fedasync", "updates": 8}


class Two(IntEnum):
    TWO = 2


class Half(Sample):
    """A custom component without the fields of the built-in ones."""

    def __init__(self) -> None: ...

    def __repr__(self) -> str:
        return "Half()"

    def cohort(self, clients: int, round: int, rng: np.random.Generator) -> range:
        return range(round % 2, clients, 2)


COMPONENTS: tuple[tuple[dict[str, Any], str, Any], ...] = (
    (ROUNDS, "transforms", ({"kind": "flip", "share": 0.1},)),
    (ROUNDS, "server_optimizer", {"kind": "momentum", "beta": 0.5}),
    (ROUNDS, "server_optimizer", Momentum(beta=np.float32(0.5))),  # type: ignore[arg-type]
    (ROUNDS, "participation", {"kind": "sample", "count": 2}),
    (ROUNDS, "compress", {"kind": "topk", "share": 0.25}),
    (ROUNDS, "submodel", Prefix(Capacities((0.5, 1.0)))),
    (ROUNDS, "submodel", Rolling(Capacities((0.25, 1.0), redraw=True), stride=2)),
    (ROUNDS, "submodel", "prefix(capacities=(0.5, 1.0))"),
    (ROUNDS, "submodel", {"kind": "prefix", "capacities": [np.float64(0.5), 1]}),
    (ROUNDS, "submodel", "pruned(capacities=(1, 0.5))"),
    (ROUNDS, "participation", Sample(2)),
    (ROUNDS, "participation", Half()),
    (ROUNDS, "participation", f"{__name__}:Half"),
    (ROUNDS, "compress", TopK(np.float64(0.5))),
    (ROUNDS, "server_optimizer", Adaptive("yogi", np.float64(0.1))),
    (
        ROUNDS,
        "method",
        fl.method("fedrolex").replace(**{"submodel.stride": np.int64(2)}, polyak_fraction=np.float32(0.5)),
    ),
    (ROUNDS, "method", Method(local=LocalTraining(steps=np.int64(2)), update=Mean(optimizer="adam(server_lr=0.1)"))),  # type: ignore[arg-type]
    (UPDATES, "staleness", Polynomial(0.25)),
    (UPDATES, "async_rule", "ringmaster(server_lr=1)"),
    (UPDATES, "async_rule", FedBuffRule(Two.TWO)),
    (ROUNDS, "submodel", "adaptive-pruning(initial=1, reprune_every=2)"),
    (ROUNDS, "partition", {"kind": "labels", "per_client": 5}),
    (UPDATES, "async_rule", FedBuffRule(size=2)),
    (UPDATES, "async_rule", FedBuffRule(size=np.int64(2))),  # type: ignore[arg-type]
    (UPDATES, "async_rule", {"kind": "buffer", "size": 2}),
)


@pytest.mark.parametrize(("method", "field", "part"), COMPONENTS)
def test_resumed_run_with_a_component_equals_an_uninterrupted_run(
    method: dict[str, Any], field: str, part: object, tmp_path: Path
) -> None:
    budget = "rounds" if "rounds" in method else "updates"
    fields = {**method, **SMALL, field: part}
    whole = fl.run(**fields, out=tmp_path / "whole")
    fl.run(**fields | {budget: method[budget] // 2}, out=tmp_path / "half")
    assert "consistent" in replay(tmp_path / "half")
    gone_on = fl.resume(tmp_path / "half", trust=True, **{budget: method[budget]})
    assert gone_on.summary["model_sha256"] == whole.summary["model_sha256"]


def test_resume_refuses_a_component_with_other_values(tmp_path: Path) -> None:
    fl.run(method="fedasync", staleness=Polynomial(0.25), updates=2, clients=2, engine="local", out=tmp_path / "run")
    for checkpoint in (tmp_path / "run" / "checkpoints").iterdir():
        checkpoint.unlink()
    config = json.loads((tmp_path / "run" / "config.json").read_text())
    config["experiment"]["staleness"] = "Polynomial"
    (tmp_path / "run" / "config.json").write_text(json.dumps(config))
    with refuses(str(tmp_path / "run" / "config.json"), "update.staleness"):
        fl.resume(tmp_path / "run", updates=4)


def test_experiment_converts_component_mappings_to_text() -> None:
    given = fl.Experiment(
        transforms=[{"kind": "flip", "share": 0.1}, "crop"], participation={"kind": "sample", "count": 2}
    )
    assert given.transforms == ("flip(share=0.1)", "crop")
    assert given.participation == "sample(count=2)"


def test_text_of_a_flat_mapping_has_all_its_values() -> None:
    assert text_of({"kind": "flip", "share": 0.1}) == "flip(share=0.1)"
    assert text_of({"kind": "flip"}) == "flip"
    assert text_of(FedBuffRule(size=np.int64(3))) == "FedBuffRule(size=3)"  # type: ignore[arg-type]
    nested = {"kind": "buffer", "optimizer": {"kind": "momentum", "beta": 0.5}}
    assert text_of(nested) == nested


def test_run_with_a_lambda_is_replayed_and_extended_if_it_is_passed_again(tmp_path: Path) -> None:
    weight = {"staleness": lambda staleness: 1 / (1 + staleness)}
    directory = fl.run(**SMALL, **UPDATES, **weight, out=tmp_path / "run").directory
    assert "<lambda> are not checked" in replay(directory)
    assert fl.report([directory], tmp_path / "page.html").exists()
    with refuses("run", "staleness"):
        fl.resume(directory, updates=12)
    longer = fl.resume(directory, updates=12, **weight)
    whole = fl.run(**SMALL, **UPDATES | {"updates": 12}, **weight, out=tmp_path / "whole")
    assert longer.summary["model_sha256"] == whole.summary["model_sha256"]
