"""Custom metrics of an evaluation: means of one number per test sample."""

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from keyword import iskeyword
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from fedraa.components.calls import convert_errors
from fedraa.components.registry import ComponentRegistry
from fedraa.data.tree import map_tree, take_rows
from fedraa.errors import InputError
from fedraa.models.statistics import kept_buffers
from fedraa.objectives import MetricSpec, Objective
from fedraa.objectives.metric_spec import TAKEN_NAMES, Direction

METRICS: ComponentRegistry[Any] = ComponentRegistry("metrics", (), {})
# A custom metric cannot have one of these names.
TAKEN = TAKEN_NAMES | {"accuracy"}


class Metric(ABC):
    """A custom metric: the mean of `values` over all test samples, summed exactly.

        class Top3(fl.Metric):
            name = "top3"

            def values(self, outputs, labels):
                return (outputs.topk(3).indices == labels[:, None]).any(dim=1)

    `name` is the metric's column in evals.csv, by default the name of the class. A function `(outputs, labels)` is also
    a metric. Each worker has a copy of the metric, so the values may depend only on the outputs and the labels.
    """

    name: str
    better: ClassVar[Direction] = "max"
    """Direction of improvement: `max` or `min`."""

    @abstractmethod
    def values(self, outputs: Tensor, labels: Tensor) -> Tensor:
        """Return one number per sample [b], from the outputs [b, ...] and the labels [b]."""


@dataclass(frozen=True)
class NamedMetric:
    """A metric with its name. Larger values are better if `better` is `max`, smaller values if it is `min`."""

    name: str
    function: Callable[[Tensor, Tensor], Tensor]
    better: Direction = "max"

    def values(self, outputs: Tensor, labels: Tensor) -> npt.NDArray[np.float64]:
        """Return one number per sample, float64 [b].

        Raises InputError if the user's function fails or returns anything else.
        """
        with convert_errors("metrics", self.function):
            # The next metric needs the tensors unchanged.
            result = self.function(outputs.clone(), labels.clone())
        if not isinstance(result, Tensor) or result.shape != labels.shape[:1] or result.is_complex():
            problem = f"{self.name} returned a wrong value for a batch of {len(labels)} samples"
            expected = f"a tensor with one real number per sample, [{len(labels)}]"
            raise InputError("metrics", problem, got=result, expected=expected)
        return np.asarray(result.detach().cpu().to(torch.float64).numpy(), np.float64)


def make_metrics(parts: Sequence[object], metric_spec: MetricSpec | None = None) -> tuple[NamedMetric, ...]:
    """Return the metrics that a user passed, each an import path, an object or a function.

    Raises InputError if an object is no metric, or a name is invalid or taken.
    """
    metrics = tuple(_make_named(part) for part in parts)
    names = [metric.name for metric in metrics]
    for number, name in enumerate(names):
        if not name.isidentifier() or iskeyword(name) or name.startswith("_"):
            problem = f"the name {name!r} cannot be the name of a column"
            raise InputError("metrics", problem, hint="choose a name such as top3")
        if name in TAKEN or name in names[:number] or (metric_spec is not None and name in reserved_names(metric_spec)):
            raise InputError("metrics", f"the name {name} is taken", hint="choose another name")
    return metrics


def reserved_names(metric_spec: MetricSpec) -> tuple[str, ...]:
    """Return the names that custom metrics cannot have because of the objective."""
    return (*metric_spec.names, f"best_{metric_spec.main}")


def _make_named(part: object) -> NamedMetric:
    component = METRICS.resolve(part)
    function = getattr(component, "values", component)
    name = getattr(component, "name", None) or getattr(component, "__name__", type(component).__name__)
    if not callable(function) or isinstance(component, dict):
        raise InputError(
            "metrics", got=component, expected="an object with a method values, or a function (outputs, labels)"
        )
    better: Direction = getattr(component, "better", "max")
    if better not in ("max", "min"):
        raise InputError("metrics.better", f"metric {name} has a wrong direction", got=better, expected="max or min")
    return NamedMetric(str(name), function, better)


def exact_mean(values: npt.NDArray[np.float64]) -> float:
    """Return the mean of values [n], rounded only once; NaN or infinity if a value is not finite."""
    with np.errstate(invalid="ignore"):
        if not np.isfinite(values).all():
            return float(values.mean())
        return math.fsum(values) / len(values)


def refuse_misfit(
    metrics: Sequence[NamedMetric],
    model: torch.nn.Module,
    x: Any,
    y: Tensor,
    objective: Objective,
) -> None:
    """Try the metrics on a batch and on one sample, because the last batch may have only one.

    Args:
        metrics: The metrics to try.
        model: The untrained model.
        x: Inputs of a batch.
        y: Labels of the batch.
        objective: Computes the outputs.

    Raises:
        InputError: A metric does not return a finite number per sample.
    """
    if not metrics:
        return
    training = model.training
    model.eval()
    with torch.no_grad(), kept_buffers(model):
        for rows in (len(y), 1):
            outputs = objective.outputs(objective.forward(model, map_tree(Tensor.clone, take_rows(x, slice(rows)))))
            for metric in metrics:
                if not np.isfinite(metric.values(outputs, y[:rows])).all():
                    problem = f"{metric.name} returned a value that is not finite for the untrained model"
                    raise InputError("metrics", problem)
    model.train(training)
