"""Custom local optimizers, wrong custom components of a step, and settings of optimizers that contradict each other."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from refusals import refuses
from tiny import LR, Stepped, spec

import fedraa as fl
from fedraa.client.local_optimizer import SGD, LocalOptimizer, OptimizerSteps


class Signs(LocalOptimizer):
    """Steps of the length `lr` in each coordinate."""

    def descend(
        self,
        weights: torch.Tensor,
        gradient: torch.Tensor,
        state: Mapping[str, torch.Tensor],
        *,
        lr: float,
        momentum: float,
        weight_decay: float,
    ) -> None:
        weights.sub_(gradient.sign(), alpha=lr)


def test_custom_optimizer_trains() -> None:
    run = spec("fedavg", clients=1, local_steps=1, local_epochs=None, local_optimizer=f"{__name__}:Signs")
    stepped = Stepped(run)
    stepped.round()
    moved = np.abs(stepped.server.params - run.params)
    np.testing.assert_allclose(moved[moved > 0], LR, rtol=1e-5)


class SignsOfSGD(SGD):
    """An optimizer that is derived from SGD and takes other steps."""

    descend = Signs.descend  # type: ignore[assignment]


@pytest.mark.parametrize("method", ["scaffold", "fednova", "fedcm"])
def test_optimizer_derived_from_sgd_is_not_taken_for_sgd(method: str) -> None:
    assert spec(method, local_optimizer="sgd(weight_decay=0.1)").method.local.weight_decay == 0.1
    with refuses("local_optimizer", method):
        spec(method, local_optimizer=SignsOfSGD())


class ReturnsWeights(LocalOptimizer):
    """An optimizer that returns new weights by mistake."""

    def descend(self, weights: Any, gradient: Any, state: Any, **values: float) -> Any:
        return weights - values["lr"] * gradient


class ReplacesBuffer(LocalOptimizer):
    """An optimizer that puts a new tensor into its state by mistake."""

    def buffers(self, momentum: float) -> tuple[str, ...]:
        return ("velocity",)

    def descend(self, weights: Any, gradient: Any, state: Any, **values: float) -> None:
        state["velocity"] = 0.9 * state["velocity"] + gradient
        weights.sub_(state["velocity"], alpha=values["lr"])


class ReadsMissingBuffer(LocalOptimizer):
    """An optimizer with a buffer that it does not declare."""

    def descend(self, weights: Any, gradient: Any, state: Any, **values: float) -> None:
        weights.sub_(state["velocity"], alpha=values["lr"])


class ReturnsGradient(fl.GradientTransform):
    """A gradient transform that returns a new gradient by mistake."""

    def apply(self, grad: Any, context: Any) -> Any:
        return grad + context.weights


class ReturnsParams(fl.ServerOptimizer):
    """A server optimizer that returns new parameters by mistake."""

    def step(self, params: Any, delta: Any, moved: Any) -> Any:
        return params + delta


class ReplacesWeights(fl.LocalAlgorithm):
    """A local algorithm that puts a new tensor into the task by mistake."""

    def train(self, run: Any) -> None:
        super().train(run)
        run.weights = run.weights * 2


REPLACES_WEIGHTS = fl.Method(
    name="replaces-weights", local=replace(fl.method("fedavg").local, algorithm=ReplacesWeights())
)


@pytest.mark.parametrize(
    ("field", "method", "fields"),
    [
        ("gradient_transforms", "fedavg", {"gradient_transforms": [ReturnsGradient()]}),
        ("server_optimizer", "fedavg", {"server_optimizer": ReturnsParams()}),
        ("method.local.algorithm", REPLACES_WEIGHTS, {}),
    ],
)
def test_custom_component_that_makes_a_new_array_is_refused(field: str, method: Any, fields: Mapping[str, Any]) -> None:
    stepped = Stepped(spec(method, clients=1, local_steps=1, local_epochs=None, **fields))
    with refuses(field):
        stepped.round()


@pytest.mark.parametrize("kind", [ReturnsWeights, ReplacesBuffer, ReadsMissingBuffer])
def test_wrong_custom_step_is_refused(kind: type[LocalOptimizer]) -> None:
    weights = torch.ones(3)
    steps = OptimizerSteps(kind(), weights, {}, momentum=0.0, weight_decay=0.0, sizes=[3])
    steps.begin_step()
    with refuses("local_optimizer"):
        steps.descend(weights, torch.ones(3), ..., 0.1)


@pytest.mark.parametrize(
    ("field", "fields"),
    [
        ("momentum", {"local_optimizer": "adam", "momentum": 0.9}),
        ("momentum", {"local_optimizer": "sgd(momentum=0.9)", "momentum": 0.5}),
        ("weight_decay", {"local_optimizer": "adamw(weight_decay=0.1)", "weight_decay": 0.2}),
        ("local_optimizer", {"local_optimizer": "adam(lr=0.1)"}),
        ("local_optimizer", {"local_optimizer": "adam(eps=0)"}),
        ("local_optimizer", {"local_optimizer": "adam(betas=(0.9, 1))"}),
        ("local_optimizer", {"local_optimizer": "adagrad"}),
        ("local_optimizer", {"local_optimizer": torch.optim.Adam}),
        ("local_optimizer", {"local_optimizer": "sgd(nesterov=True)", "momentum": 0.0}),
        ("local_optimizer", {"local_optimizer": "sgd(nesterov=True, dampening=0.1)"}),
        ("local_optimizer", {"local_optimizer": "sgd(dampening=0.1)", "momentum": 0.0}),
        ("local_optimizer_state", {"local_optimizer_state": "keep", "momentum": 0.0}),
        *[
            ("local_optimizer", {"method": name, "local_optimizer": "adam"})
            for name in ("scaffold", "fedcm", "mimelite")
        ],
        ("lr_schedule", {"lr_schedule": "cosine:auto"}),
        ("lr_schedule", {"lr_schedule": "cosine:1.5@local"}),
    ],
)
def test_values_that_do_not_go_together_are_refused(field: str, fields: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=rf"^{field}[.:]"):
        spec(**{"method": "fedavg", **fields})


def test_momentum_of_zero_goes_with_adam() -> None:
    """Equal terms set momentum 0 for all methods, so Adam must accept it."""
    assert spec("fedavg", local_optimizer="adam", momentum=0.0).method.local.momentum == 0
    assert spec("fedavg", local_optimizer="adam").method.local.momentum == 0
