"""Public classes refuse arguments of a wrong type when an object is created."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from refusals import refuses
from torch import nn

import fedraa as fl
from fedraa.methods.feddyn import FedDynRule
from fedraa.submodels.policies.regions import RegionSchedule


class Frozen(fl.ServerOptimizer):
    def __init__(self, server_lr: float) -> None:
        self.server_lr = server_lr

    def step(self, params: Any, delta: Any, moved: Any) -> None: ...


LAYERS = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2))
SAMPLE = torch.zeros(1, 2)
# For each argument: the field of the error, a call, and wrong values.
ARGUMENTS: list[tuple[str, Callable[[Any], object], tuple[object, ...]]] = [
    ("callbacks.waiting", fl.ProgressBar, (5, "x", object())),
    ("callbacks.patience", lambda value: fl.EarlyStopping(patience=value), (0, 1.5, "x", None)),
    ("callbacks.metric", lambda value: fl.EarlyStopping(metric=value), (5, ("loss",))),
    ("callbacks.mode", lambda value: fl.EarlyStopping(mode=value), ("up", 5)),
    ("callbacks.path", fl.CSV, (5, None)),
    ("callbacks.directory", fl.TensorBoard, (5, None)),
    ("callbacks.name", lambda value: fl.TensorBoard(name=value), (5, ())),
    ("callbacks.project", fl.WandB, (5, None)),
    ("callbacks.group", lambda value: fl.WandB(group=value), (5, {})),
    ("callbacks.experiment", fl.MLflow, (5, None)),
    ("callbacks.uri", lambda value: fl.MLflow(uri=value), (5, ())),
    ("method.name", lambda value: fl.Method(name=value), (5, None)),
    ("method.formula", lambda value: fl.Method(formula=value), (5, None)),
    ("method.paper_settings", lambda value: fl.Method(paper_settings=value), (5, "x", {})),
    ("kept: name", fl.KeptBuffer, (5, None)),
    ("kept: z.size", lambda value: fl.KeptBuffer("z", size=value), (0, 1.5, "x")),
    ("kept: z.start", lambda value: fl.KeptBuffer("z", value), (None, {}, object(), 1e300)),
    ("kept: z.coordinates", lambda value: fl.KeptBuffer("z", coordinates=value), (5, "x", [1, 2], np.ones(2))),
    ("blocks", lambda value: fl.EarlyExits(value, LAYERS), (5, "x", None, [1, 2])),
    ("exits", lambda value: fl.EarlyExits(LAYERS, value), (5, "x", None, [1, 2])),
    ("model", lambda value: fl.early_exits(value, SAMPLE, [1]), (5, nn.Linear(2, 2))),
    ("sample", lambda value: fl.early_exits(LAYERS, value, [1]), (5, np.zeros((1, 2)))),
    ("after", lambda value: fl.early_exits(LAYERS, SAMPLE, value), (None, ["x"], [0.5])),
    ("alpha", lambda value: fl.lora(nn.Linear(20, 20), alpha=value), ("x", 0, 1e300)),
    ("server_optimizer.server_lr", lambda value: Frozen(value).bind(2), (0, 1e300, float("nan"))),
    ("space", lambda value: fl.tune(["fedavg"], value), ([1], (None,))),
    ("async_rule.size", FedDynRule, ("x", None, 2.5)),
    ("submodel.tau", lambda value: RegionSchedule(tau=value), ("x", None, 4.5)),
]
CASES = [
    pytest.param(field, call, value, id=f"{field}-{type(value).__name__}-{number}")
    for field, call, values in ARGUMENTS
    for number, value in enumerate(values)
]


@pytest.mark.parametrize(("field", "call", "value"), CASES)
def test_argument_of_a_wrong_type_is_refused_at_construction(
    field: str, call: Callable[[Any], object], value: object
) -> None:
    with refuses(field):
        call(value)


def test_early_exits_accepts_one_layer_number_and_a_module_list() -> None:
    model = fl.early_exits(LAYERS, SAMPLE, 1)
    assert len(fl.EarlyExits(model.blocks, model.exits).blocks) == 2
