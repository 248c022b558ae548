"""Tasks that are trained as one batched computation: the other tasks do not change the result of a task."""

import warnings
from collections.abc import Mapping
from dataclasses import replace
from typing import Any, ClassVar

import numpy as np
import pytest
import torch
from refusals import refuses
from torch import nn
from torch.nn import functional

from fedraa.client import LocalTraining, Work
from fedraa.client.flat_module import BatchedModule
from fedraa.client.trainer import Trainer
from fedraa.config.experiment import Experiment
from fedraa.engine.build import build_run
from fedraa.engine.worker_spec import WorkerSpec
from fedraa.messages import Task
from fedraa.models.images import ImageConv2d
from fedraa.objectives import Classification
from fedraa.objectives.metric_spec import Direction
from fedraa.submodels import Traced, flatten_parameters
from fedraa.submodels.tracing.trace import trace_module

RNG = np.random.default_rng(5)
FEATURES, CLASSES, HEIGHT = 12, 4, 4
# 23 samples make batches of 8, 8 and 7; 9 samples make 8 and 1; 5 samples make one batch of another shape.
SHARDS = [
    (RNG.normal(size=(size, 1, 3, 4)).astype(np.float32), RNG.integers(0, CLASSES - 1, size)) for size in (23, 9, 17, 5)
]


def mlp() -> nn.Module:
    return nn.Sequential(nn.Flatten(), nn.Linear(FEATURES, 6), nn.ReLU(), nn.Linear(6, CLASSES))


def cnn() -> nn.Module:
    return nn.Sequential(
        ImageConv2d(1, 6, 3, padding=1), nn.GroupNorm(2, 6), nn.ReLU(), nn.Flatten(), nn.Linear(6 * FEATURES, CLASSES)
    )


def traced(model: Any = mlp) -> Traced:
    torch.manual_seed(0)
    return trace_module(model(), torch.from_numpy(SHARDS[0][0][:2]))


def make_trainer(model: Traced, solver: LocalTraining, height: int = HEIGHT, *, bf16: bool = False) -> Trainer:
    return WorkerSpec(model, solver, 1, False, bf16, height).trainer("cpu")


def make_work(
    model: Traced, client: int, extras: tuple[str, ...] = (), *, masked: bool = False, width: int | None = None
) -> Work:
    """Return the task of a client with new buffers."""
    rng = np.random.default_rng(client)
    widths = model.widths(model.full()) if width is None else (width,)
    start = flatten_parameters(model.make_skeleton(widths))
    buffers = {name: rng.normal(size=start.size).astype(np.float32) for name in ("params", *extras)}
    mask = rng.random(start.size) < 0.6 if masked else None
    task = Task(client, client, 3, 0, 0, 0, widths, 0.3 * buffers.pop("params"), 0.1, 1.0, mask=mask, extras=buffers)
    return Work(task, *SHARDS[client])


class Attention(nn.Module):
    """A layer of attention, for which torch.func.vmap has no batching rule on a CPU. It issues a custom warning."""

    def __init__(self) -> None:
        super().__init__()
        self.line = nn.Linear(FEATURES, CLASSES)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        warnings.warn("a warning of the model", UserWarning, stacklevel=1)
        tokens = self.line(x)[:, None, None]
        attended: torch.Tensor = nn.functional.scaled_dot_product_attention(tokens, tokens, tokens)
        return attended[:, 0, 0]


def test_only_the_warning_about_missing_batching_rules_is_hidden() -> None:
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        model = BatchedModule(Attention(), 2, torch.device("cpu"))
        logits = model.forward(torch.ones(2, 3, FEATURES))
        model.backward(model.loss(logits, logits, torch.zeros(2, 3, dtype=torch.int64)))
    assert [str(warning.message) for warning in caught] == ["a warning of the model"]


@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize(
    ("terms", "extras"),
    [
        ({"momentum": 0.0}, ()),
        ({"momentum": 0.9, "prox_mu": 0.5, "weight_decay": 0.1}, ()),
        ({"sam_rho": 0.1, "momentum": 0.5}, ()),
        ({"clip": 0.1}, ()),
        ({"control": True}, ("control",)),
        ({"grad_mix": 0.3}, ("momentum",)),
        ({"squares": True}, ()),
        ({"label_masked": True}, ()),
        ({"logit_calibration": 0.75}, ()),
        ({"compressor": "topk:0.3"}, ()),
        ({"compressor": "8bit"}, ()),
        ({"steps": 4}, ()),
        ({"lr_schedule": "adaptive"}, ()),
    ],
)
def test_batched_tasks_train_like_single_tasks(terms: dict[str, Any], extras: tuple[str, ...], masked: bool) -> None:
    model = traced()
    solver = LocalTraining(**({"batch_size": 8, "epochs": 2} | terms))
    together = [make_work(model, client, extras, masked=masked) for client in range(4)]
    alone = Trainer(model, solver, seed=1)
    for got, one in zip(make_trainer(model, solver).train_all(together), together, strict=True):
        expected = alone.train(*one)
        np.testing.assert_allclose(got.params, expected.params, atol=2e-6)
        assert got.loss == pytest.approx(expected.loss, rel=1e-5)
        assert (got.task, got.client, got.steps) == (expected.task, expected.client, expected.steps)
        assert got.cosine == pytest.approx(expected.cosine, abs=1e-4)
        assert got.extras.keys() == expected.extras.keys()
        for name, value in got.extras.items():
            np.testing.assert_allclose(value, expected.extras[name], rtol=1e-4, atol=1e-7)
        assert (got.params != one.task.params).any()


@pytest.mark.parametrize("model", [mlp, cnn])
@pytest.mark.parametrize("terms", [{"momentum": 0.9}, {"sam_rho": 0.1}])
def test_result_of_a_task_does_not_depend_on_the_rest_of_its_batch(model: Any, terms: dict[str, Any]) -> None:
    """A task's result does not depend on the other tasks or on its place in the batch, even if they end in NaN."""
    model = traced(model)
    trainer = make_trainer(model, LocalTraining(**terms, batch_size=8, epochs=2))
    mine, others = make_work(model, 0), [make_work(model, client) for client in (2, 1)]
    wild = others[0]._replace(task=replace(others[0].task, buffer=others[0].task.params * np.float32(1e30)))
    [alone] = trainer.train_all([mine])
    for batch_tasks in ([*others, mine], [wild, mine], [mine, mine, mine, mine, mine], [make_work(model, 3), mine]):
        among = trainer.train_all(batch_tasks)[-1]
        np.testing.assert_array_equal(among.params, alone.params)
        assert among.loss == alone.loss
    assert not np.isfinite(trainer.train_all([wild])[0].params).all()


def test_tasks_of_different_shapes_train_alike_and_keep_their_order() -> None:
    model = traced()
    solver = LocalTraining(batch_size=8, epochs=1)
    some = [make_work(model, client, width=width) for client, width in ((0, 6), (1, 3), (2, 6), (3, 3), (1, 6), (0, 3))]
    updates = make_trainer(model, solver, 2).train_all(some)
    for update, one in zip(updates, some, strict=True):
        np.testing.assert_allclose(update.params, Trainer(model, solver, seed=1).train(*one).params, atol=2e-6)


def test_batches_train_in_bf16() -> None:
    model = traced()
    solver = LocalTraining(batch_size=8, epochs=1)
    [half], [full] = (
        make_trainer(model, solver, 2, bf16=bf16).train_all([make_work(model, 0)]) for bf16 in (True, False)
    )
    assert half.params.dtype == np.float32
    assert 0 < np.abs(half.params - full.params).max() < 0.02


class Smoothed(Classification):
    """Classification with smoothed labels."""

    def loss(self, outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        return functional.cross_entropy(outputs, targets, label_smoothing=0.1)


class Tempered(Classification):
    """Classification with logits that are divided by a temperature."""

    def outputs(self, result: torch.Tensor) -> torch.Tensor:
        return result / 4


class TopTwo(Classification):
    """Classification with the share of samples whose label is among the two highest logits."""

    better: ClassVar[Mapping[str, Direction]] = {"accuracy": "max", "top2": "max"}

    def measured(self, outputs: torch.Tensor, targets: torch.Tensor) -> Mapping[str, torch.Tensor]:
        return {**super().measured(outputs, targets), "top2": (outputs.topk(2).indices == targets[:, None]).any(1)}


def test_classification_with_another_metric_is_batched() -> None:
    build_run(Experiment(clients=4, vmap_batch=2, engine="local", objective=TopTwo()))


@pytest.mark.parametrize(
    ("changes", "names"),
    [
        ({"method": "mimelite"}, ["mimelite", "gradient"]),
        ({"method": "fedrobust"}, ["fedrobust", "adversary"]),
        ({"method": "splitfed", "hidden": (8, 8)}, ["splitfed", "splits"]),
        ({"dropout": 0.5}, ["vmap"]),
        ({"model": "mlp-exits", "hidden": (8, 8)}, ["tuple", "logits"]),
        ({"objective": Smoothed()}, ["Smoothed"]),
        ({"objective": Tempered()}, ["Tempered"]),
        ({"objective": Classification({"aux": 0.4})}, ["classification"]),
    ],
)
def test_settings_that_vmap_cannot_batch_are_refused(changes: dict[str, Any], names: list[str]) -> None:
    with refuses("vmap_batch", *names, got=2) as error:
        build_run(Experiment(**({"clients": 4, "vmap_batch": 2, "engine": "local"} | changes)))
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(("statistics", "reason"), [(True, "vmap cannot run"), (False, "batch norm")])
def test_models_that_mix_samples_are_refused(statistics: bool, reason: str) -> None:
    model = nn.Sequential(
        nn.Flatten(), nn.Linear(64, 8), nn.BatchNorm1d(8, track_running_stats=statistics), nn.ReLU(), nn.Linear(8, 10)
    )
    with pytest.raises(ValueError, match=f"^vmap_batch: .*{reason}"):
        build_run(Experiment(clients=4, vmap_batch=2, engine="local"), model)
