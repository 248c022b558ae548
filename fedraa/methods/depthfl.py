"""DepthFL: clients train the first blocks of a model with a classifier after each block (Kim et al. 2023).

Client n of depth L, from the first L blocks and classifiers of theta, with logits z_1 ... z_L:
    loss = sum over l of F(z_l) + kd / (L - 1) * sum over l and j != l of KL(softmax(z_j) || softmax(z_l))
    kd = exp(-5 * (1 - min(round, ramp_up) / ramp_up)^2)     # rounds from 0; softmax(z_j) is a constant target
    F is the loss of the objective. In the paper it is the cross-entropy.
Server, for each tensor: theta <- mean of the clients that trained it
The model predicts with the mean of the logits of all classifiers.

L is the client's capacity times the number of blocks, rounded down. A model without classifiers after its blocks is
refused. The method depthfl-feddyn adds the linear and the proximal term of FedDyn, as the authors' code does.

Read next: models/exits.py (the model), client/local_algorithm.py (the interface of local training),
aggregation/coverage_mean.py (the mean), methods/feddyn.py (the terms of FedDyn).
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from math import exp
from typing import ClassVar

import torch
from torch import Tensor
from torch.nn import functional as F

from fedraa.client.last_call import LastCall, recorded_call
from fedraa.client.local_algorithm import LocalAlgorithm, LocalRun
from fedraa.client.local_training import LocalTraining
from fedraa.composition.method import Method, PaperSettings
from fedraa.composition.registry import register
from fedraa.methods.feddyn import DriftSum, DynamicRegularizer
from fedraa.models.exits import EarlyExits, block_number
from fedraa.numbers import Count, round_down
from fedraa.server.round_update import Mean
from fedraa.submodels.assignment import Assignment
from fedraa.submodels.meter import measure_step
from fedraa.submodels.policies import SUBMODEL
from fedraa.submodels.policies.policy import (
    TWENTIETHS,
    Capacities,
    Pure,
    RunContext,
    SubmodelSampler,
    WithCapacities,
)


@SUBMODEL.register("first-blocks")
@dataclass(frozen=True)
class FirstBlocks(WithCapacities):
    """For a client of capacity r: the first floor(r B) of B blocks, at least one, and their classifiers (DepthFL).

    Attributes:
        capacities: Each client's share of the blocks.
    """

    capacities: Capacities = field(default_factory=lambda: Capacities((0.25, 0.5, 0.75, 1.0)))

    full_width: ClassVar[bool] = True
    cuts: ClassVar[bool] = False
    shares: ClassVar[tuple[float, ...]] = TWENTIETHS

    def bind(self, run: RunContext) -> SubmodelSampler:
        assert run.example is not None
        traced = run.traced
        whole = run.whole()
        skeleton = traced.make_full_skeleton()
        if not isinstance(skeleton, EarlyExits):
            return Pure(lambda context: Assignment(1, whole))
        blocks = len(skeleton.blocks)
        flops = []
        for depth in range(1, blocks + 1):
            skeleton.depth = depth
            flops.append(measure_step(skeleton, run.example).flops)
        assignments = [
            Assignment(
                depth,
                whole,
                traced.mask_of([name for name in traced.names if block_number(name) < depth]),
                mask_by_label=True,
                work=flops[depth - 1] / flops[-1],
            )
            for depth in range(1, blocks)
        ]
        assignments.append(Assignment(blocks, whole))
        return Pure(
            lambda context: assignments[
                max(1, round_down(self.capacities.of(context.client, context.round, run.seed) * blocks)) - 1
            ]
        )


@dataclass(frozen=True)
class SelfDistillation(LocalAlgorithm):
    """Local training of all classifiers of a client's blocks, which also learn from each other (DepthFL).

    Attributes:
        ramp_up: Number of rounds after which the weight of the distillation is 1.
    """

    ramp_up: Count = 300

    classifies: ClassVar[bool] = True

    def train(self, run: LocalRun) -> None:
        model = run.module
        if not isinstance(model, EarlyExits):
            super().train(run)
            return
        weight = self.distillation_weight(run.server_step)
        with recorded_call(model) as call:
            for inputs, labels in run.minibatches():
                loss = partial(run.output_loss, labels=labels)
                run.step(inputs, labels, penalty=partial(_exit_losses, call, loss, weight))

    def distillation_weight(self, round: int) -> float:
        """Return the weight kd of the distillation in a round. The first round is round 0."""
        return exp(-5 * (1 - min(round, self.ramp_up) / self.ramp_up) ** 2)


def _exit_losses(call: LastCall, loss: Callable[[Tensor], Tensor], weight: float) -> Tensor:
    """Return the sum of the losses of all exits except the deepest, and of the distillation loss of all exits.

    Args:
        call: The model's last call. Its result is the logits [b, classes] of every exit, the deepest first.
        loss: A function that returns the mean loss of logits [b, classes].
        weight: The weight of the distillation.
    """
    logits: Sequence[Tensor] = call.result
    deepest, *others = [values.float() for values in logits]
    total = deepest.new_zeros(())
    for values in others:
        total = total + loss(values)
    if not others:
        return total
    exits = torch.stack([deepest, *others])
    predicted = F.log_softmax(exits, dim=-1)
    targets = F.softmax(exits.detach(), dim=-1)
    for number, target in enumerate(targets):
        for other, mine in enumerate(predicted):
            if other != number:
                total = total + weight / len(others) * F.kl_div(mine, target, reduction="batchmean")
    return total


@dataclass(frozen=True)
class DynamicDistillation(DynamicRegularizer, SelfDistillation):
    """SelfDistillation with the linear and the proximal term of FedDyn."""


DEPTHFL = register(
    Method(
        name="depthfl",
        paper="Kim et al. 2023",
        note="without FedDyn, which depthfl-feddyn adds",
        formula="Clients train the first blocks, each with a classifier; each tensor becomes the mean of its clients.",
        when=(
            "Devices of unequal memory, and a model with a classifier after each block, such as resnet18-exits. Other "
            "models are refused."
        ),
        submodel=FirstBlocks(),
        local=LocalTraining(momentum=0.0, algorithm=SelfDistillation()),
        update=Mean(),
        paper_settings=PaperSettings(
            source="authors' code, CIFAR-100",
            values={
                "lr": 0.1,
                "lr_schedule": "exponential:0.998",
                "momentum": 0.0,
                "local_epochs": 5,
                "batch_size": 50,
                "weight_decay": 1e-3,
                "weights": "uniform",
                "local.algorithm.ramp_up": 300,
            },
            client_fraction=0.1,
        ),
    )
)
assert DEPTHFL.paper_settings is not None
register(
    replace(
        DEPTHFL,
        name="depthfl-feddyn",
        variant_of="depthfl",
        note="",
        formula="The submodels and the distillation of depthfl, with the terms and the server step of feddyn.",
        when="As depthfl, with unequal data, and clients that take part often.",
        local=replace(DEPTHFL.local, prox_mu=0.1, algorithm=DynamicDistillation()),
        update=Mean(auxiliary=DriftSum()),
        paper_settings=replace(DEPTHFL.paper_settings, values={**DEPTHFL.paper_settings.values, "prox_mu": 0.1}),
    )
)
