"""Mistakes in hooks of custom components, such as `memory` or `begin`, are errors with a field."""

import sys
import threading
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from refusals import refuses
from torch import nn

import fedraa as fl
from fedraa.client.gradient_transforms import AddVector, Clipping, Proximal
from fedraa.client.local_step import begin_transforms
from fedraa.components.calls import convert_errors
from fedraa.engine.executor import may_be_client_fault
from fedraa.errors import InputError, short_text
from fedraa.messages import ExtraBuffers
from fedraa.objectives import Classification
from fedraa.rundir.status import read_status
from fedraa.server.round_state import RoundState
from fedraa.server.round_update import Mean

SMALL: dict[str, Any] = {"clients": 3, "hidden": (8,), "local_steps": 1, "quiet": True, "engine": "local"}


def fails(*arguments: Any, **values: Any) -> Any:
    raise RuntimeError("broken")


def leaves(*arguments: Any, **values: Any) -> Any:
    sys.exit(3)


def odd(base: type, *arguments: Any, **methods: Any) -> Any:
    """Return an object of a subclass named Odd."""
    return type("Odd", (base,), methods)(*arguments)


def returning(value: object) -> Any:
    return lambda *arguments, **values: value


def rule(**methods: Any) -> dict[str, Any]:
    return {"method": "fedasync", "async_rule": odd(fl.AsyncRule, apply_update=fails, **methods)}


def aggregator(**methods: Any) -> dict[str, Any]:
    return {"method": "fedavg", "aggregator": odd(fl.Aggregator, **({"add": fails, "finish": fails} | methods))}


def optimizer(**methods: Any) -> dict[str, Any]:
    return {"method": "fedavg", "local_optimizer": odd(fl.LocalOptimizer, descend=fails, **methods)}


def algorithm(**methods: Any) -> dict[str, Any]:
    own = odd(fl.LocalAlgorithm, **methods)
    return {"method": fl.Method(name="own", local=replace(fl.method("fedavg").local, algorithm=own))}


def local(state: RoundState | None = None, **values: Any) -> dict[str, Any]:
    settings = replace(fl.method("fedavg").local, **values)
    return {"method": fl.Method(local=settings, update=Mean(auxiliary=state or RoundState()))}


def round_state(**methods: Any) -> dict[str, Any]:
    return {"method": fl.Method(update=Mean(auxiliary=odd(RoundState, **methods)))}


def compressor(size: Any, **methods: Any) -> dict[str, Any]:
    hooks = {"apply": lambda self, delta, rng: delta, "bytes": size} | methods
    return {"compress": odd(fl.Compressor, **hooks)}


def attack(**methods: Any) -> dict[str, Any]:
    return {"method": "fedavg", "attack": odd(fl.Attack, **methods), "attackers": 0.4}


BEFORE_THE_START = [
    *((rule(memory=returning(size)), "async_rule", "Odd.memory") for size in ("x", None, True, -1, float("nan"))),
    (rule(memory=fails), "async_rule", "Odd"),
    (aggregator(memory=returning("x")), "aggregator", "Odd.memory"),
    (aggregator(memory=fails), "aggregator", "Odd"),
    (round_state(memory=returning(-1)), "auxiliary", "Odd.memory"),
    *(
        (round_state(extra_buffers=value), "auxiliary", "Odd.extra_buffers")
        for value in ([1.0, 1.0], None, {"down": 1}, (1, 1, 0), ExtraBuffers(up=-1), ExtraBuffers(down=0.5))  # type: ignore[arg-type]
    ),
    (round_state(extra_buffers=property(fails)), "auxiliary", "RuntimeError"),
    *((round_state(asks=value), "auxiliary", "Odd.asks") for value in (["gradient"], "gradient", None, (3,))),
    *((compressor(returning(size)) | {"method": "fedavg"}, "compress", "Odd.bytes") for size in ("x", -1, 0.5, None)),
    (compressor(fails) | {"method": "fedavg"}, "compress", "Odd"),
    (
        compressor(lambda self, n: n, for_feedback=fails) | {"method": "fedavg", "error_feedback": "ef21"},
        "compress",
        "Odd",
    ),
    (optimizer(buffers=returning("velocity")), "local_optimizer", "Odd.buffers"),
    (optimizer(buffers=fails), "local_optimizer", "Odd"),
    (optimizer(check=fails), "local_optimizer", "Odd"),
    (local(algorithm=fl.LocalAlgorithm), "method.local.algorithm", "LocalAlgorithm"),
    (algorithm(kept=property(returning("last"))), "method.local.algorithm", "Odd.kept"),
    (algorithm(kept=property(fails)), "method.local.algorithm", "Odd"),
    (algorithm(check_model=fails), "method.local.algorithm", "Odd"),
    (algorithm(passes=property(fails)), "method.local.algorithm", "Odd"),
    (algorithm(passes=property(returning("x"))), "method.local.algorithm", "Odd.passes"),
    (algorithm(epochs=property(returning(None))), "method.local.algorithm", "Odd.epochs"),
    (attack(start=fails), "attack", "Odd"),
    (attack(forge=fails), "attack", "Odd"),
    (attack(forge=leaves), "attack", "Odd"),
    (attack(forge=lambda self, delta, rng: delta[:2]), "attack", "Odd.forge"),
    (attack(poison=returning(None)), "attack", "Odd"),
    (attack(poison=lambda self, x, y, rng: (x[:2], y)), "attack", "Odd.poison"),
    (attack(poison=lambda self, x, y, rng: (x.tolist(), y)), "attack", "Odd"),
    (attack(poison=lambda self, x, y, rng: (x, y + 1)), "attack", "Odd.poison"),
    (attack(poison=lambda self, x, y, rng: (x, y - 1)), "attack", "Odd.poison"),
    (attack(poison=lambda self, x, y, rng: (x, y / 2)), "attack", "Odd.poison"),
    ({"metrics": (leaves,)}, "metrics", "leaves"),
    (
        {"method": "fedavg", "server_optimizer": odd(fl.ServerOptimizer, step=fails, server_lr="x")},
        "server_optimizer.server_lr",
        "'x'",
    ),
    ({"gradient_transforms": (Proximal(-1.0),)}, "gradient_transforms.rho", "-1"),
    ({"gradient_transforms": (Clipping(0.0),)}, "gradient_transforms.bound", "0"),
    ({"gradient_transforms": (np,)}, "gradient_transforms", "numpy"),
]


@pytest.mark.parametrize(("fields", "field", "name"), BEFORE_THE_START)
def test_hook_with_a_mistake_is_refused_before_the_start(
    tmp_path: Path, fields: dict[str, Any], field: str, name: str
) -> None:
    with refuses(field, name):
        fl.run(**SMALL | fields, out=tmp_path / "run")
    assert not (tmp_path / "run").exists()


def no_steps(self: Any, run: Any) -> None:
    run.record_loss(torch.ones(()))


def replies_with_a_number(self: Any, run: Any) -> None:
    fl.LocalAlgorithm.train(self, run)
    run.reply["g"] = 3


def adds_a_number(self: Any, run: Any) -> None:
    run.add_transform(3)


def reads_the_gradient(self: Any, run: Any) -> None:
    for inputs, labels in run.minibatches():
        run.gradient(inputs, labels)


def clips(self: Any, run: Any) -> None:
    run.add_transform(Clipping(1.0))


# A run with a model object needs the default value of `hidden`.
HIDDEN = fl.Experiment.model_fields["hidden"].default
# No check before the start has batches of this size.
BATCH = 7


class OddLoss(Classification):
    """An objective that fails in training."""

    def training_loss(self, result: Any, outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        if len(targets) == BATCH:
            raise KeyError("broken")
        return super().training_loss(result, outputs, targets)


@pytest.mark.parametrize(
    ("fields", "field", "names"),
    [
        (optimizer(start=fails), "local_optimizer", ("Odd", "RuntimeError")),
        (optimizer(start=returning(None)), "local_optimizer", ("Odd.start",)),
        (
            optimizer(start=returning({}), buffers=returning(("velocity",))),
            "local_optimizer",
            ("Odd.start", "velocity"),
        ),
        (optimizer(), "local_optimizer", ("Odd", "RuntimeError")),
        (algorithm(train=fails), "method.local.algorithm", ("Odd", "RuntimeError")),
        (algorithm(train=leaves), "method.local.algorithm", ("Odd", "SystemExit")),
        (algorithm(train=no_steps), "method.local.algorithm", ("Odd.train", "run.step")),
        (algorithm(train=replies_with_a_number), "method.local.algorithm", ("Odd.train", "run.reply['g']")),
        (algorithm(train=adds_a_number), "method.local.algorithm", ("run.add_transform", "got 3")),
        (
            algorithm(train=reads_the_gradient),
            "method.local.algorithm",
            ("run.gradient", "needs_whole_gradient", "Odd"),
        ),
        (algorithm(train=clips), "method.local.algorithm", ("Clipping", "needs_whole_gradient", "Odd")),
        (local(control=True), "gradient_transforms", ("AddVector", "control", "send")),
        (local(odd(RoundState, momentum=True), grad_mix=0.5), "gradient_transforms", ("momentum", "send")),
        ({"objective": OddLoss(), "batch_size": BATCH}, "objective", ("OddLoss", "KeyError")),
        (compressor(lambda self, n: n, apply=fails) | {"method": "fedavg"}, "compress", ("Odd", "RuntimeError")),
    ],
)
def test_error_names_the_client_component_that_fails_on_all_clients(
    tmp_path: Path, fields: dict[str, Any], field: str, names: tuple[str, ...]
) -> None:
    out = tmp_path / "run"
    with refuses(field, *names) as caught:
        fl.run(**SMALL | fields, out=out)
    assert "all 3 clients" in caught.value.__notes__[0]
    assert read_status(out).state == f"failed ({caught.value})"


@pytest.mark.parametrize("begin", [fails, leaves, returning(None)])
def test_error_names_a_gradient_transform_with_a_wrong_begin(begin: Any) -> None:
    own = odd(fl.GradientTransform, apply=fails, begin=begin)
    with refuses("gradient_transforms", "Odd"):
        begin_transforms([own], {})


class OddModel(nn.Linear):
    """A model that fails after the start of the run."""

    started = False

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        if self.started and self.training:
            raise KeyError("broken")
        return super().forward(torch.flatten(inputs, 1))


class Start(fl.Callback):
    def on_start(self, run: Any) -> None:
        OddModel.started = True


def test_error_names_a_model_that_fails_on_all_clients(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(OddModel, "started", False)
    model = OddModel(64, 10)
    with refuses("model", "OddModel", "KeyError"):
        fl.run(**SMALL | {"method": "fedavg", "hidden": HIDDEN}, model=model, callbacks=[Start()], out=tmp_path / "run")


class OddEvaluation(Classification):
    """An objective with a method that fails in evaluations, whose batches are larger than those of the trials."""

    def sums(self, outputs: torch.Tensor, targets: torch.Tensor) -> dict[str, torch.Tensor]:
        if len(targets) > 2:
            raise KeyError("broken")
        return super().sums(outputs, targets)


class OddClients(Classification):
    def of_clients(self, sums: Any) -> Any:
        raise KeyError("broken")


class OddOutputs(Classification):
    def outputs(self, result: Any) -> torch.Tensor:
        if len(result) == BATCH:
            raise KeyError("broken")
        return super().outputs(result)


class OddTrial(Classification):
    def expected_outputs(self, outputs: torch.Tensor, targets: torch.Tensor, classes: int) -> str | None:
        raise KeyError("broken")


class OddInEvaluation(OddModel):
    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        if self.started and not self.training:
            raise KeyError("broken")
        return super().forward(inputs)


@pytest.mark.parametrize(
    ("fields", "field", "method"),
    [
        ({"objective": OddEvaluation()}, "objective", "OddEvaluation.sums"),
        ({"objective": OddClients()}, "objective", "OddClients.of_clients"),
        ({"objective": OddOutputs(), "batch_size": BATCH}, "objective", "OddOutputs.outputs"),
        ({"objective": OddTrial()}, "objective", "OddTrial.expected_outputs"),
        ({"model": OddInEvaluation(64, 10), "hidden": HIDDEN}, "model", "OddInEvaluation.forward"),
    ],
)
def test_error_of_an_objective_or_a_model_in_any_call_names_its_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fields: dict[str, Any], field: str, method: str
) -> None:
    monkeypatch.setattr(OddModel, "started", False)
    with refuses(field, "KeyError", f"{method} (test_other_hooks_mistakes.py, line "):
        fl.run(**SMALL | {"method": "fedavg"} | fields, callbacks=[Start()], out=tmp_path / "run")


def test_failing_personal_model_ends_the_run_and_is_named(tmp_path: Path) -> None:
    kept = property(returning((fl.KeptBuffer("own"),)))
    fields = algorithm(has_personal_model=True, kept=kept, personal_model=fails)
    samples = (np.random.default_rng(0).normal(size=(30, 4)).astype(np.float32), np.arange(30) % 2)
    owners = np.arange(30) % 3
    data = fl.FederatedDataset("pairs", samples, samples, clients=owners, test_clients=owners)
    with refuses("method.local.algorithm", "Odd", "RuntimeError"):
        fl.run(**SMALL | fields, dataset=data, out=tmp_path / "run")


def test_error_about_a_missing_buffer_of_a_transform_names_the_buffer() -> None:
    with refuses("gradient_transforms", "AddVector", "control"):
        begin_transforms([AddVector()], {})


def test_subclass_of_a_built_in_transform_is_checked_like_a_custom_one(tmp_path: Path) -> None:
    own = odd(Proximal, 0.1, apply=lambda self, grad, context: grad * 2)
    with (
        pytest.warns(fl.RunWarning),
        refuses("gradient_transforms", "Odd.apply", "in place"),
    ):
        fl.run(**SMALL, gradient_transforms=(own,), out=tmp_path / "run")


def test_error_names_its_component_even_if_the_text_looks_like_a_field() -> None:
    def shapes() -> None:
        raise ValueError("shape: 3 is wrong")

    with refuses("aggregator", "shapes", "shape: 3 is wrong"), convert_errors("aggregator", shapes):
        shapes()


def test_error_names_a_rule_that_cannot_be_copied(tmp_path: Path) -> None:
    own = rule()["async_rule"]
    own.lock = threading.Lock()
    with refuses("async_rule", "Odd"):
        fl.run(**SMALL, method="fedasync", async_rule=own, out=tmp_path / "run")
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("name", ["MemoryError", "OutOfMemoryError", "AcceleratorError"])
def test_lack_of_memory_in_a_custom_component_is_not_blamed_on_the_client(name: str) -> None:
    with pytest.raises(InputError) as caught, convert_errors("local_optimizer", fails):
        raise type(name, (RuntimeError,), {})("no memory")
    assert not may_be_client_fault(caught.value)
    assert may_be_client_fault(ValueError("a wrong sample"))


def test_a_module_is_described_by_its_name() -> None:
    assert short_text(np) == "the module numpy"


def test_a_collection_of_one_item_is_described_in_the_singular() -> None:
    assert short_text([object()]) == "a list of 1 item of type object"
    assert short_text({"a": object()}) == "a dict of 1 entry of type object"
