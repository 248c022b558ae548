"""Objectives, which define the loss and the metrics of a run."""

from fedraa.objectives.builtin import OBJECTIVE, Classification, MultiLabel, NextToken, Regression, Segmentation
from fedraa.objectives.fit import describe_misfit, make_objective
from fedraa.objectives.metric_spec import MetricSpec, Target, make_target, read_metric_spec, refuse_no_accuracy
from fedraa.objectives.objective import Objective

__all__ = [
    "OBJECTIVE",
    "Classification",
    "MetricSpec",
    "MultiLabel",
    "NextToken",
    "Objective",
    "Regression",
    "Segmentation",
    "Target",
    "describe_misfit",
    "make_objective",
    "make_target",
    "read_metric_spec",
    "refuse_no_accuracy",
]
