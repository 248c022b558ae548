"""Objectives, which define the loss and the metrics of a run."""

from fedraa.objectives.builtin import Classification
from fedraa.objectives.fit import describe_misfit, make_objective
from fedraa.objectives.metric_spec import MetricSpec, Target, make_target, read_metric_spec, refuse_no_accuracy
from fedraa.objectives.objective import Objective

__all__ = [
    "Classification",
    "MetricSpec",
    "Objective",
    "Target",
    "describe_misfit",
    "make_objective",
    "make_target",
    "read_metric_spec",
    "refuse_no_accuracy",
]
