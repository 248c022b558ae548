"""Objectives: the loss of a run, its metrics, and the better direction of each metric."""

from fedraa.objectives.builtin import OBJECTIVE, Classification, MultiLabel, NextToken, Regression, Segmentation
from fedraa.objectives.figures import Figures, Target, figures_of, make_target, refuse_no_accuracy
from fedraa.objectives.fit import describe_misfit, make_objective
from fedraa.objectives.objective import Objective

__all__ = [
    "OBJECTIVE",
    "Classification",
    "Figures",
    "MultiLabel",
    "NextToken",
    "Objective",
    "Regression",
    "Segmentation",
    "Target",
    "describe_misfit",
    "figures_of",
    "make_objective",
    "make_target",
    "refuse_no_accuracy",
]
